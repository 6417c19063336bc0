#include "weights/stored.h"

#include <cstring>
#include <stdexcept>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

constexpr const char* kNames[] = {"F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q6_K"};
constexpr Layout kLayouts[] = {Layout::kFloat32, Layout::kFloat16, Layout::kBFloat16, Layout::kQ4_0, Layout::kQ4_1,
                               Layout::kQ5_0,    Layout::kQ8_0,    Layout::kQ4K,      Layout::kQ6K};

uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// 16 bytes of nibbles: inputs 0 .. 15 low, 16 .. 31 high.
void read_nibbles(const uint8_t* p, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = p[i] & 15;
  for (int i = 0; i < 16; ++i) to[16 + i] = p[i] >> 4;
}

// Bit i of `four` is the fifth bit of code i.
void add_fifth_bits(uint32_t four, uint8_t* code) {
  uint32_t word;
  std::memcpy(&word, code, 4);
  word |= (four * 0x00204081 & 0x01010101) << 4;  // copies 7 bits apart: bit i lands at the foot of byte i
  std::memcpy(code, &word, 4);
}

// d, dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles: two groups share 32 bytes.
void read_q4k(const uint8_t* p, Codes& to) {
  to.d[0] = half_at(p);
  to.minimum[0] = half_at(p + 2);
  const uint8_t* s = p + 4;
  for (int g = 0; g < 4; ++g) {
    to.scale[g] = s[g] & 63;
    to.min_scale[g] = s[g + 4] & 63;
    to.scale[g + 4] = uint8_t((s[g + 8] & 15) | s[g] >> 6 << 4);
    to.min_scale[g + 4] = uint8_t(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
  }
  for (int pair = 0; pair < 4; ++pair)
    for (int i = 0; i < 32; ++i) {
      const uint8_t both = p[16 + 32 * pair + i];
      to.code[64 * pair + i] = both & 15;
      to.code[64 * pair + 32 + i] = both >> 4;
    }
}

// Low nibbles [2 halves][2][32] (two runs of 32 inputs a byte), high bits [2 halves][32] (four), scales [16], d.
void read_q6k(const uint8_t* p, Codes& to) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    uint8_t* code = to.code + 128 * half;
    for (int i = 0; i < 32; ++i) {
      code[i] = uint8_t((low[i] & 15) | (high[i] & 3) << 4);
      code[32 + i] = uint8_t((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
      code[64 + i] = uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      code[96 + i] = uint8_t(low[32 + i] >> 4 | high[i] >> 6 << 4);
    }
  }
  std::memcpy(to.scale, p + 192, 16);
  to.d[0] = half_at(p + 208);
}

}  // namespace

Stored stored_named(const std::string& name) {
  for (size_t i = 0; i < sizeof kNames / sizeof *kNames; ++i)
    if (name == kNames[i]) return Stored(i);
  std::string all;
  for (const char* known : kNames) all += (all.empty() ? "" : ", ") + std::string(known);
  throw std::invalid_argument("'" + name + "' is no format of weights that the native runtime reads; it reads " + all);
}

Layout layout_of(Stored stored) { return kLayouts[size_t(stored)]; }

size_t stored_bytes(Layout layout, size_t num_groups) {
  switch (layout) {
    case Layout::kFloat32: return num_groups * 128;
    case Layout::kFloat16:
    case Layout::kBFloat16: return num_groups * 64;
    case Layout::kQ4K: return num_groups / kGroupsOfBlock * 144;
    case Layout::kQ6K: return num_groups / kGroupsOfBlock * 210;
    case Layout::kQ4_0: return num_groups * 18;
    case Layout::kQ4_1: return num_groups * 20;
    case Layout::kQ5_0: return num_groups * 22;
    case Layout::kQ8_0: return num_groups * 34;
  }
  return 0;
}

size_t stored_row_bytes(Stored stored, size_t num_inputs) {
  if (num_inputs > SIZE_MAX / 256)  // products of it with a panel's 16 lanes must not wrap around
    throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " weights: the file is damaged");
  if (stored == Stored::kF32) return num_inputs * 4;
  if (stored == Stored::kF16 || stored == Stored::kBF16) return num_inputs * 2;
  const size_t step = stored == Stored::kQ4_K || stored == Stored::kQ6_K ? kBlock : kGroup;
  if (num_inputs % step != 0)
    throw std::invalid_argument(std::string(kNames[size_t(stored)]) + " stores weights by " + std::to_string(step) +
                                " but a row has " + std::to_string(num_inputs) + ": the file is damaged");
  return stored_bytes(layout_of(stored), num_inputs / kGroup);
}

void read_stored(Layout layout, const uint8_t* p, size_t num_groups, Codes& to) {
  switch (layout) {
    case Layout::kQ4K: return read_q4k(p, to);
    case Layout::kQ6K: return read_q6k(p, to);
    case Layout::kQ4_0:
      for (size_t g = 0; g < num_groups; ++g, p += 18) {
        to.d[g] = half_at(p);
        read_nibbles(p + 2, to.code + 32 * g);
      }
      return;
    case Layout::kQ4_1:
      for (size_t g = 0; g < num_groups; ++g, p += 20) {
        to.d[g] = half_at(p);
        to.minimum[g] = half_at(p + 2);
        read_nibbles(p + 4, to.code + 32 * g);
      }
      return;
    case Layout::kQ5_0:
      for (size_t g = 0; g < num_groups; ++g, p += 22) {
        to.d[g] = half_at(p);
        read_nibbles(p + 6, to.code + 32 * g);
        for (int i = 0; i < 8; ++i) add_fifth_bits(p[2 + i / 2] >> 4 * (i % 2) & 15, to.code + 32 * g + 4 * i);
      }
      return;
    case Layout::kQ8_0:
      for (size_t g = 0; g < num_groups; ++g, p += 34) {
        to.d[g] = half_at(p);
        for (int i = 0; i < 32; ++i) to.code[32 * g + i] = uint8_t(p[2 + i] ^ 0x80);
      }
      return;
    default: return;  // floats have no codes
  }
}

// The order of the roundings is that of the gguf package's dequantize.
void decode(Layout layout, const Codes& c, size_t num_groups, float* to) {
  for (size_t g = 0; g < num_groups; ++g, to += kGroup) {
    const uint8_t* code = c.code + kGroup * g;
    if (layout == Layout::kQ4K) {
      const float scale = half_to_float(c.d[0]) * float(c.scale[g]);
      const float minimum = half_to_float(c.minimum[0]) * float(c.min_scale[g]);
      for (size_t i = 0; i < kGroup; ++i) to[i] = scale * float(code[i]) - minimum;
    } else if (layout == Layout::kQ6K) {
      for (size_t i = 0; i < kGroup; ++i)
        to[i] = half_to_float(c.d[0]) * float(int8_t(c.scale[2 * g + i / 16])) * float(int(code[i]) - 32);
    } else if (layout == Layout::kQ4_1) {
      const float scale = half_to_float(c.d[g]), minimum = half_to_float(c.minimum[g]);
      for (size_t i = 0; i < kGroup; ++i) to[i] = scale * float(code[i]) + minimum;
    } else {
      const float scale = half_to_float(c.d[g]);
      const int offset = layout == Layout::kQ4_0 ? 8 : layout == Layout::kQ5_0 ? 16 : 128;
      for (size_t i = 0; i < kGroup; ++i) to[i] = scale * float(int(code[i]) - offset);
    }
  }
}

void decode_row(Stored stored, const uint8_t* row, size_t num_inputs, float* to) {
  const Layout layout = layout_of(stored);
  if (stored == Stored::kF32) {
    std::memcpy(to, row, num_inputs * 4);
  } else if (stored == Stored::kF16) {
    for (size_t i = 0; i < num_inputs; ++i) to[i] = half_to_float(half_at(row + 2 * i));
  } else if (stored == Stored::kBF16) {
    for (size_t i = 0; i < num_inputs; ++i) to[i] = bf16_to_float(half_at(row + 2 * i));
  } else {
    Codes codes;
    for (size_t left = num_inputs / kGroup; left > 0;) {
      const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
      read_stored(layout, row, count, codes);
      decode(layout, codes, count, to);
      row += stored_bytes(layout, count);
      to += count * kGroup;
      left -= count;
    }
  }
}

}  // namespace forerun
