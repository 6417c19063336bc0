// Wide lanes as arrays: the reference for the other instruction sets.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

struct F64 {
  double v[16];
};
struct U64 {
  uint64_t v[16];
};

#define FORERUN_EACH for (int i = 0; i < 16; ++i)

FORERUN_INLINE F64 broadcast_f64(double x) {
  F64 r;
  FORERUN_EACH r.v[i] = x;
  return r;
}
FORERUN_INLINE F64 load_f64(const double* p) {
  F64 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE void store_f64(double* p, F64 a) { FORERUN_EACH p[i] = a.v[i]; }
FORERUN_INLINE F64 load_widened(const float* p) {
  F64 r;
  FORERUN_EACH r.v[i] = double(p[i]);
  return r;
}
FORERUN_INLINE F64 operator+(F64 a, F64 b) {
  FORERUN_EACH a.v[i] += b.v[i];
  return a;
}
FORERUN_INLINE F64 operator-(F64 a, F64 b) {
  FORERUN_EACH a.v[i] -= b.v[i];
  return a;
}
FORERUN_INLINE F64 operator*(F64 a, F64 b) {
  FORERUN_EACH a.v[i] *= b.v[i];
  return a;
}
FORERUN_INLINE F64 fma(F64 a, F64 b, F64 c) {
  FORERUN_EACH c.v[i] = __builtin_fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
FORERUN_INLINE F64 fnma(F64 a, F64 b, F64 c) {
  FORERUN_EACH c.v[i] = __builtin_fma(-a.v[i], b.v[i], c.v[i]);
  return c;
}
FORERUN_INLINE F64 positive(F64 a) {
  FORERUN_EACH a.v[i] = 0.0 > a.v[i] ? 0.0 : a.v[i];
  return a;
}
FORERUN_INLINE F64 zero_where_less(F64 a, F64 x, F64 limit) {
  FORERUN_EACH a.v[i] = x.v[i] < limit.v[i] ? 0.0 : a.v[i];
  return a;
}
FORERUN_INLINE F64 power_of_two(F64 a) {
  FORERUN_EACH {
    uint64_t bits;
    __builtin_memcpy(&bits, &a.v[i], 8);
    bits = (bits << 52) + 0x3FF0000000000000;
    __builtin_memcpy(&a.v[i], &bits, 8);
  }
  return a;
}
FORERUN_INLINE double sum(F64 a) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; ++i) a.v[i] += a.v[i + half];
  return a.v[0];
}

FORERUN_INLINE U64 broadcast_u64(uint64_t x) {
  U64 r;
  FORERUN_EACH r.v[i] = x;
  return r;
}
FORERUN_INLINE U64 load_u64(const uint64_t* p) {
  U64 r;
  FORERUN_EACH r.v[i] = p[i];
  return r;
}
FORERUN_INLINE U64 operator+(U64 a, U64 b) {
  FORERUN_EACH a.v[i] += b.v[i];
  return a;
}
FORERUN_INLINE U64 operator^(U64 a, U64 b) {
  FORERUN_EACH a.v[i] ^= b.v[i];
  return a;
}
FORERUN_INLINE U64 shift_right(U64 a, int count) {
  FORERUN_EACH a.v[i] >>= count;
  return a;
}
FORERUN_INLINE U64 multiply(U64 a, uint64_t constant) {
  FORERUN_EACH a.v[i] *= constant;
  return a;
}
FORERUN_INLINE F32 top_24(U64 a) {
  F32 r;
  FORERUN_EACH r.v[i] = float(int32_t(a.v[i] >> 40));
  return r;
}

FORERUN_INLINE I32 truncate(F32 a) {
  I32 r;
  FORERUN_EACH r.v[i] = int32_t(a.v[i]);
  return r;
}

FORERUN_INLINE uint32_t at_least(F32 a, F32 limit) {
  uint32_t found = 0;
  FORERUN_EACH found |= uint32_t(a.v[i] >= limit.v[i]) << i;
  return found;
}

#undef FORERUN_EACH

}  // namespace
}  // namespace forerun::FORERUN_ISA
