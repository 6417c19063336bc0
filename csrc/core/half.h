// 16-bit floats, one at a time: IEEE 754 binary16 and bfloat16, rounding to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace forerun {
namespace {

inline float half_to_float(uint16_t half) {
  uint32_t sign = uint32_t(half & 0x8000) << 16, rest = half & 0x7FFF, bits;
  if (rest >= 0x7C00) {  // infinity, NaN (made quiet, as the hardware does)
    bits = sign | 0x7F800000 | ((rest & 0x3FF) << 13) | ((rest & 0x3FF) ? 0x400000 : 0);
  } else if (rest >= 0x400) {
    bits = sign | ((rest + 0x1C000) << 13);
  } else {  // zero and subnormals: rest * 2^-24, exactly
    float value = float(rest) * 5.9604644775390625e-8f;
    std::memcpy(&bits, &value, 4);
    bits |= sign;
  }
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) return uint16_t(sign | 0x7E00 | (bits >> 13 & 0x1FF));
  if (bits >= 0x477FF000) return uint16_t(sign | 0x7C00);  // 65520 and above round to infinity
  if (bits < 0x38800000) {  // below 2^-14: a multiple of 2^-24, rounded by the adder
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    magnitude += 0.5f;
    std::memcpy(&bits, &magnitude, 4);
    return uint16_t(sign | (bits - 0x3F000000));
  }
  bits += 0xFFF + (bits >> 13 & 1);
  return uint16_t(sign | ((bits - 0x38000000) >> 13));
}

inline float bf16_to_float(uint16_t x) {
  uint32_t bits = uint32_t(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline uint16_t float_to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return uint16_t(bits >> 16 | 0x40);  // NaN, made quiet
  return uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

}  // namespace
}  // namespace forerun
