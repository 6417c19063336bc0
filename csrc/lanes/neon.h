// Lanes as four 128-bit registers: 64-bit ARM with the dot products of ARMv8.2 (Cortex-A55 and -A75 2017, Apple M1).
#pragma once

#include <arm_neon.h>

namespace forerun::FORERUN_ISA {
namespace {

struct F32 {
  float32x4_t a, b, c, d;
};
struct I32 {
  int32x4_t a, b, c, d;
};
struct Bytes {
  uint8x16_t a, b, c, d;
};

FORERUN_INLINE F32 broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {v, v, v, v};
}
FORERUN_INLINE F32 zero() { return broadcast(0.0f); }
FORERUN_INLINE F32 load(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
}
FORERUN_INLINE void store(float* p, F32 x) {
  vst1q_f32(p, x.a);
  vst1q_f32(p + 4, x.b);
  vst1q_f32(p + 8, x.c);
  vst1q_f32(p + 12, x.d);
}
FORERUN_INLINE float32x4_t widen_half(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
FORERUN_INLINE F32 load_half(const uint16_t* p) {
  return {widen_half(p), widen_half(p + 4), widen_half(p + 8), widen_half(p + 12)};
}
FORERUN_INLINE float32x4_t widen_bf16(const uint16_t* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
}
FORERUN_INLINE F32 load_bf16(const uint16_t* p) {
  return {widen_bf16(p), widen_bf16(p + 4), widen_bf16(p + 8), widen_bf16(p + 12)};
}

#define FORERUN_FOUR(f) {f(a), f(b), f(c), f(d)}

#define FORERUN_PART(p) vaddq_f32(x.p, y.p)
FORERUN_INLINE F32 operator+(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vsubq_f32(x.p, y.p)
FORERUN_INLINE F32 operator-(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vmulq_f32(x.p, y.p)
FORERUN_INLINE F32 operator*(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vdivq_f32(x.p, y.p)
FORERUN_INLINE F32 operator/(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vfmaq_f32(z.p, x.p, y.p)
FORERUN_INLINE F32 fma(F32 x, F32 y, F32 z) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vfmsq_f32(z.p, x.p, y.p)
FORERUN_INLINE F32 fnma(F32 x, F32 y, F32 z) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
// ARM's own max and min give NaN where either operand is one; x86's, which all sets follow, give the second.
FORERUN_INLINE float32x4_t larger(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
FORERUN_INLINE float32x4_t smaller(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
#define FORERUN_PART(p) larger(x.p, y.p)
FORERUN_INLINE F32 max(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) smaller(x.p, y.p)
FORERUN_INLINE F32 min(F32 x, F32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vabsq_f32(x.p)
FORERUN_INLINE F32 abs(F32 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) \
  vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x.p), vcgeq_f32(y.p, limit.p)))
FORERUN_INLINE F32 zero_where_below(F32 x, F32 y, F32 limit) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART

FORERUN_INLINE I32 broadcast_i32(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {v, v, v, v};
}
FORERUN_INLINE I32 load_i32(const int32_t* p) {
  return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
FORERUN_INLINE void store_i32(int32_t* p, I32 x) {
  vst1q_s32(p, x.a);
  vst1q_s32(p + 4, x.b);
  vst1q_s32(p + 8, x.c);
  vst1q_s32(p + 12, x.d);
}
FORERUN_INLINE I32 widen_u8(const uint8_t* p) {
  const uint8x16_t bytes = vld1q_u8(p);
  const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
  const int16x8_t high = vreinterpretq_s16_u16(vmovl_high_u8(bytes));
  return {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
}
FORERUN_INLINE I32 widen_i8(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
  return {vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)), vmovl_high_s16(high)};
}
#define FORERUN_PART(p) vaddq_s32(x.p, y.p)
FORERUN_INLINE I32 operator+(I32 x, I32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vsubq_s32(x.p, y.p)
FORERUN_INLINE I32 operator-(I32 x, I32 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE I32 shift_left(I32 x, int count) {
  const int32x4_t by = vdupq_n_s32(count);
#define FORERUN_PART(p) vshlq_s32(x.p, by)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}
#define FORERUN_PART(p) vcvtq_f32_s32(x.p)
FORERUN_INLINE F32 to_f32(I32 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE int32x4_t round_four(float32x4_t x) {
  return vsubq_s32(vreinterpretq_s32_f32(vaddq_f32(x, vdupq_n_f32(12582912.0f))), vdupq_n_s32(0x4B400000));
}
#define FORERUN_PART(p) round_four(x.p)
FORERUN_INLINE I32 round_to_i32(F32 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vreinterpretq_f32_s32(x.p)
FORERUN_INLINE F32 from_bits(I32 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART

FORERUN_INLINE Bytes load_bytes(const void* p) {
  const uint8_t* q = (const uint8_t*)p;
  return {vld1q_u8(q), vld1q_u8(q + 16), vld1q_u8(q + 32), vld1q_u8(q + 48)};
}
FORERUN_INLINE float sum(F32 x) {
  const float32x4_t s = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  return vpadds_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)));
}
FORERUN_INLINE float largest(F32 x) {
  const float32x4_t s = larger(larger(x.a, x.c), larger(x.b, x.d));
  const float low = vgetq_lane_f32(s, 0), high = vgetq_lane_f32(s, 2);
  const float even = low > high ? low : high;
  const float second = vgetq_lane_f32(s, 1), fourth = vgetq_lane_f32(s, 3);
  const float odd = second > fourth ? second : fourth;
  return even > odd ? even : odd;
}
FORERUN_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }

}  // namespace
}  // namespace forerun::FORERUN_ISA
