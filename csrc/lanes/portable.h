// Lanes as arrays: what every compiler and processor understands. The reference for the other instruction sets.
#pragma once

#include "core/half.h"

namespace forerun::FORERUN_ISA {
namespace {

struct F32 {
  float v[16];
};
struct I32 {
  int32_t v[16];
};
struct Bytes {
  int8_t v[64];
};

#define FORERUN_EACH for (int i = 0; i < 16; ++i)

FORERUN_INLINE F32 broadcast(float x) {
  F32 r;
  FORERUN_EACH r.v[i] = x;
  return r;
}
FORERUN_INLINE F32 zero() { return broadcast(0.0f); }
FORERUN_INLINE F32 load(const float* p) {
  F32 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE void store(float* p, F32 a) { FORERUN_EACH p[i] = a.v[i]; }
FORERUN_INLINE F32 load_half(const uint16_t* p) {
  F32 r;
  FORERUN_EACH r.v[i] = half_to_float(p[i]);
  return r;
}
FORERUN_INLINE F32 load_bf16(const uint16_t* p) {
  F32 r;
  FORERUN_EACH r.v[i] = bf16_to_float(p[i]);
  return r;
}

FORERUN_INLINE F32 operator+(F32 a, F32 b) {
  FORERUN_EACH a.v[i] += b.v[i];
  return a;
}
FORERUN_INLINE F32 operator-(F32 a, F32 b) {
  FORERUN_EACH a.v[i] -= b.v[i];
  return a;
}
FORERUN_INLINE F32 operator*(F32 a, F32 b) {
  FORERUN_EACH a.v[i] *= b.v[i];
  return a;
}
FORERUN_INLINE F32 operator/(F32 a, F32 b) {
  FORERUN_EACH a.v[i] /= b.v[i];
  return a;
}
FORERUN_INLINE F32 fma(F32 a, F32 b, F32 c) {
  FORERUN_EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]);
  return c;
}
FORERUN_INLINE F32 fnma(F32 a, F32 b, F32 c) {
  FORERUN_EACH c.v[i] = __builtin_fmaf(-a.v[i], b.v[i], c.v[i]);
  return c;
}
// As x86 has it: the second operand where either is NaN or both are zero.
FORERUN_INLINE F32 max(F32 a, F32 b) {
  FORERUN_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
FORERUN_INLINE F32 min(F32 a, F32 b) {
  FORERUN_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
FORERUN_INLINE F32 abs(F32 a) {
  FORERUN_EACH a.v[i] = __builtin_fabsf(a.v[i]);
  return a;
}
// a where x >= limit, else 0.
FORERUN_INLINE F32 zero_where_below(F32 a, F32 x, F32 limit) {
  FORERUN_EACH a.v[i] = x.v[i] >= limit.v[i] ? a.v[i] : 0.0f;
  return a;
}

FORERUN_INLINE I32 broadcast_i32(int32_t x) {
  I32 r;
  FORERUN_EACH r.v[i] = x;
  return r;
}
FORERUN_INLINE I32 load_i32(const int32_t* p) {
  I32 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE void store_i32(int32_t* p, I32 a) { FORERUN_EACH p[i] = a.v[i]; }
FORERUN_INLINE I32 widen_u8(const uint8_t* p) {
  I32 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE I32 widen_i8(const int8_t* p) {
  I32 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE I32 operator+(I32 a, I32 b) {
  FORERUN_EACH a.v[i] = int32_t(uint32_t(a.v[i]) + uint32_t(b.v[i]));
  return a;
}
FORERUN_INLINE I32 operator-(I32 a, I32 b) {
  FORERUN_EACH a.v[i] = int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i]));
  return a;
}
FORERUN_INLINE I32 shift_left(I32 a, int count) {
  FORERUN_EACH a.v[i] = int32_t(uint32_t(a.v[i]) << count);
  return a;
}
FORERUN_INLINE F32 to_f32(I32 a) {
  F32 r;
  FORERUN_EACH r.v[i] = float(a.v[i]);
  return r;
}
// |a| < 2^22: adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low bits.
FORERUN_INLINE I32 round_to_i32(F32 a) {
  I32 r;
  FORERUN_EACH {
    float shifted = a.v[i] + 12582912.0f;
    int32_t bits;
    __builtin_memcpy(&bits, &shifted, 4);
    r.v[i] = bits - 0x4B400000;
  }
  return r;
}
FORERUN_INLINE F32 from_bits(I32 a) {
  F32 r;
  __builtin_memcpy(&r, &a, 64);
  return r;
}

FORERUN_INLINE Bytes load_bytes(const void* p) {
  Bytes r;
  __builtin_memcpy(&r, p, 64);
  return r;
}
FORERUN_INLINE float sum(F32 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}
FORERUN_INLINE float largest(F32 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
  return a.v[0];
}
FORERUN_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

#undef FORERUN_EACH

}  // namespace
}  // namespace forerun::FORERUN_ISA
