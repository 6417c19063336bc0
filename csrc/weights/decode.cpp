// Weights from codes and scales: packed.h has the formulas. The order of the roundings is that of the gguf package's
// dequantize.
#include <cstring>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

// 2^(e - 128), which is below the normal floats for e < 2.
float half_power(uint16_t e) {
  const uint32_t bits = e < 2 ? uint32_t(0x00200000) << e : uint32_t(e - 1) << 23;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// What weights are multiples of, in group g and its half.
float step_of(Layout layout, const Codes& c, size_t g, size_t half) {
  switch (layout) {
    case Layout::kQ2K: return half_to_float(c.d[0]) * float(c.scale[2 * g + half]);
    case Layout::kQ3K: return half_to_float(c.d[0]) * float(int(c.scale[2 * g + half]) - 32);
    case Layout::kQ4K:
    case Layout::kQ5K: return half_to_float(c.d[0]) * float(c.scale[g]);
    case Layout::kQ6K: return half_to_float(c.d[0]) * float(int8_t(c.scale[2 * g + half]));
    case Layout::kIQ4XS: return half_to_float(c.d[0]) * float(int(c.scale[g]) - 32);
    case Layout::kMXFP4: return half_power(c.d[g]);
    default: return half_to_float(c.d[g]);
  }
}

int offset_of(Layout layout) {
  switch (layout) {
    case Layout::kQ3K: return 4;
    case Layout::kQ4_0: return 8;
    case Layout::kQ5_0: return 16;
    case Layout::kQ6K: return 32;
    case Layout::kQ8_0: return 128;
    default: return 0;
  }
}

}  // namespace

void decode(Layout layout, const Codes& c, size_t num_groups, float* to) {
  const int offset = offset_of(layout);
  const int8_t* values = layout == Layout::kMXFP4                                ? kFloatFour
                         : layout == Layout::kIQ4NL || layout == Layout::kIQ4XS ? kUnevenFour
                                                                                : nullptr;
  for (size_t part = 0; part < 2 * num_groups; ++part, to += 16) {
    const size_t g = part / 2;
    const float step = step_of(layout, c, g, part % 2);
    float weights[16];
    for (size_t i = 0; i < 16; ++i) {
      const int code = c.code[16 * part + i];
      weights[i] = step * float(values != nullptr ? values[code] : code - offset);
    }
    if (layout == Layout::kQ2K || layout == Layout::kQ4K || layout == Layout::kQ5K) {
      const float minimum = half_to_float(c.minimum[0]) * float(c.min_scale[layout == Layout::kQ2K ? part : g]);
      for (float& weight : weights) weight -= minimum;
    }
    if (layout == Layout::kQ4_1 || layout == Layout::kQ5_1)
      for (float& weight : weights) weight += half_to_float(c.minimum[g]);
    std::memcpy(to, weights, sizeof weights);
  }
}

}  // namespace forerun
