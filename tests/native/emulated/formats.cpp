// Random stored weights of every format.
#include <cstring>

#include "core/half.h"
#include "records.h"

namespace emulated {

using forerun::Stored;

const std::vector<Format>& formats() {
  static const std::vector<Format> all = {
      {"F32", Stored::kF32, 1, 4, {}},
      {"F16", Stored::kF16, 1, 2, {}},
      {"BF16", Stored::kBF16, 1, 2, {}},
      {"Q4_0", Stored::kQ4_0, 32, 18, {0}},
      {"Q4_1", Stored::kQ4_1, 32, 20, {0, 2}},
      {"Q5_0", Stored::kQ5_0, 32, 22, {0}},
      {"Q5_1", Stored::kQ5_1, 32, 24, {0, 2}},
      {"Q8_0", Stored::kQ8_0, 32, 34, {0}},
      {"Q2_K", Stored::kQ2_K, 256, 84, {80, 82}},
      {"Q3_K", Stored::kQ3_K, 256, 110, {108}},
      {"Q4_K", Stored::kQ4_K, 256, 144, {0, 2}},
      {"Q5_K", Stored::kQ5_K, 256, 176, {0, 2}},
      {"Q6_K", Stored::kQ6_K, 256, 210, {208}},
      {"IQ4_NL", Stored::kIQ4_NL, 32, 18, {0}},
      {"IQ4_XS", Stored::kIQ4_XS, 256, 136, {0}},
      {"MXFP4", Stored::kMXFP4, 32, 17, {}},
  };
  return all;
}

namespace {

std::vector<uint8_t> random_floats(const Format& format, size_t n, int kind) {
  std::vector<uint8_t> stored(n * format.bytes);
  for (size_t i = 0; i < n; ++i) {
    const float value = kind == 2 ? any_float(false) : normal() * 0.02f;
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t half = uint16_t(bits >> 16);
    if (format.stored == Stored::kF16) half = kind == 2 ? uint16_t(bits64() & 0xFBFF) : forerun::float_to_half(value);
    if (format.stored == Stored::kF32)
      memcpy(&stored[4 * i], &value, 4);
    else
      memcpy(&stored[2 * i], &half, 2);
  }
  return stored;
}

}  // namespace

std::vector<uint8_t> random_stored(const Format& format, size_t outputs, size_t inputs, int kind) {
  if (format.inputs == 1) return random_floats(format, outputs * inputs, kind);
  // Zeros, the least and the largest subnormal, normal and finite numbers.
  static const uint16_t extreme[] = {0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x0401, 0x2E66};
  std::vector<uint8_t> stored(outputs * (inputs / format.inputs) * format.bytes);
  for (uint8_t& byte : stored) byte = kind == 1 ? (bits64() & 1 ? 0xFF : 0x00) : uint8_t(bits64());
  for (size_t block = 0; block < stored.size() / format.bytes; ++block) {
    if (format.stored == Stored::kMXFP4 && kind == 0)  // scales of 2^(e - 128): neither subnormal nor infinite
      stored[block * format.bytes] = uint8_t(116 + below(6));
    for (size_t at : format.halves) {
      const uint16_t half = kind == 2 ? extreme[below(10)] : forerun::float_to_half(normal() * 0.02f);
      memcpy(&stored[block * format.bytes + at], &half, 2);
    }
  }
  return stored;
}

}  // namespace emulated
