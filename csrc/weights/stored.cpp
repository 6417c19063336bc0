#include "weights/stored.h"

#include <cstring>
#include <stdexcept>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

struct Format {
  const char* name;
  Layout layout;
  size_t num_weights;  // of one block
  size_t num_bytes;
};
// In the order of Stored.
constexpr Format kFormats[] = {
    {"F32", Layout::kFloat32, 1, 4},        {"F16", Layout::kFloat16, 1, 2},     {"BF16", Layout::kBFloat16, 1, 2},
    {"Q4_0", Layout::kQ4_0, 32, 18},        {"Q4_1", Layout::kQ4_1, 32, 20},     {"Q5_0", Layout::kQ5_0, 32, 22},
    {"Q5_1", Layout::kQ5_1, 32, 24},        {"Q8_0", Layout::kQ8_0, 32, 34},     {"Q2_K", Layout::kQ2K, 256, 84},
    {"Q3_K", Layout::kQ3K, 256, 110},       {"Q4_K", Layout::kQ4K, 256, 144},    {"Q5_K", Layout::kQ5K, 256, 176},
    {"Q6_K", Layout::kQ6K, 256, 210},       {"IQ4_NL", Layout::kIQ4NL, 32, 18},  {"IQ4_XS", Layout::kIQ4XS, 256, 136},
    {"MXFP4", Layout::kMXFP4, 32, 17},
};
static_assert(sizeof kFormats / sizeof *kFormats == size_t(Stored::kMXFP4) + 1, "one format for each name");

const Format& format_of(Layout layout) {
  const Format* found = kFormats;
  while (found->layout != layout) ++found;
  return *found;
}

}  // namespace

Stored stored_named(const std::string& name) {
  std::string all;
  for (const Format& format : kFormats) {
    if (name == format.name) return Stored(&format - kFormats);
    all += (all.empty() ? "" : ", ") + std::string(format.name);
  }
  throw std::invalid_argument("'" + name + "' is no format of weights that the native runtime reads; it reads " + all);
}

Layout layout_of(Stored stored) { return kFormats[size_t(stored)].layout; }

const char* name_of(Layout layout) { return format_of(layout).name; }

size_t stored_bytes(Layout layout, size_t num_groups) {
  const Format& format = format_of(layout);
  return num_groups * kGroup / format.num_weights * format.num_bytes;
}

size_t stored_row_bytes(Stored stored, size_t num_inputs) {
  if (num_inputs > SIZE_MAX / 256)  // products of it with a panel's 16 lanes must not wrap around
    throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " weights: the file is damaged");
  const Format& format = kFormats[size_t(stored)];
  if (num_inputs % format.num_weights != 0)
    throw std::invalid_argument(std::string(format.name) + " stores weights by " + std::to_string(format.num_weights) +
                                " but a row has " + std::to_string(num_inputs) + ": the file is damaged");
  return num_inputs / format.num_weights * format.num_bytes;
}

void decode_row(Stored stored, const uint8_t* row, size_t num_inputs, float* to) {
  const auto half_at = [row](size_t i) { return uint16_t(row[2 * i] | row[2 * i + 1] << 8); };
  if (stored == Stored::kF32) {
    std::memcpy(to, row, num_inputs * 4);
  } else if (stored == Stored::kF16) {
    for (size_t i = 0; i < num_inputs; ++i) to[i] = half_to_float(half_at(i));
  } else if (stored == Stored::kBF16) {
    for (size_t i = 0; i < num_inputs; ++i) to[i] = bf16_to_float(half_at(i));
  } else {
    const Layout layout = layout_of(stored);
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
