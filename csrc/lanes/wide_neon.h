// Wide lanes as eight 128-bit registers.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

struct F64 {
  float64x2_t a, b, c, d, e, f, g, h;
};
struct U64 {
  uint64x2_t a, b, c, d, e, f, g, h;
};

#define FORERUN_EIGHT(of) {of(a), of(b), of(c), of(d), of(e), of(f), of(g), of(h)}

FORERUN_INLINE F64 broadcast_f64(double x) {
  const float64x2_t v = vdupq_n_f64(x);
  return {v, v, v, v, v, v, v, v};
}
FORERUN_INLINE F64 load_f64(const double* p) {
  return {vld1q_f64(p),     vld1q_f64(p + 2),  vld1q_f64(p + 4),  vld1q_f64(p + 6),
          vld1q_f64(p + 8), vld1q_f64(p + 10), vld1q_f64(p + 12), vld1q_f64(p + 14)};
}
FORERUN_INLINE void store_f64(double* p, F64 x) {
  vst1q_f64(p, x.a);
  vst1q_f64(p + 2, x.b);
  vst1q_f64(p + 4, x.c);
  vst1q_f64(p + 6, x.d);
  vst1q_f64(p + 8, x.e);
  vst1q_f64(p + 10, x.f);
  vst1q_f64(p + 12, x.g);
  vst1q_f64(p + 14, x.h);
}
FORERUN_INLINE F64 load_widened(const float* p) {
  const float32x4_t x = vld1q_f32(p), y = vld1q_f32(p + 4), z = vld1q_f32(p + 8), w = vld1q_f32(p + 12);
#define FORERUN_BOTH(v) vcvt_f64_f32(vget_low_f32(v)), vcvt_high_f64_f32(v)
  return {FORERUN_BOTH(x), FORERUN_BOTH(y), FORERUN_BOTH(z), FORERUN_BOTH(w)};
#undef FORERUN_BOTH
}

#define FORERUN_PART(p) vaddq_f64(x.p, y.p)
FORERUN_INLINE F64 operator+(F64 x, F64 y) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vsubq_f64(x.p, y.p)
FORERUN_INLINE F64 operator-(F64 x, F64 y) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vmulq_f64(x.p, y.p)
FORERUN_INLINE F64 operator*(F64 x, F64 y) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vfmaq_f64(z.p, x.p, y.p)
FORERUN_INLINE F64 fma(F64 x, F64 y, F64 z) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) vfmsq_f64(z.p, x.p, y.p)
FORERUN_INLINE F64 fnma(F64 x, F64 y, F64 z) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE float64x2_t positive_two(float64x2_t x) {
  return vbslq_f64(vcltzq_f64(x), vdupq_n_f64(0.0), x);
}
#define FORERUN_PART(p) positive_two(x.p)
FORERUN_INLINE F64 positive(F64 x) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) \
  vreinterpretq_f64_u64(vbicq_u64(vreinterpretq_u64_f64(x.p), vcltq_f64(y.p, limit.p)))
FORERUN_INLINE F64 zero_where_less(F64 x, F64 y, F64 limit) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE float64x2_t power_of_two_128(float64x2_t x) {
  const uint64x2_t bits = vshlq_n_u64(vreinterpretq_u64_f64(x), 52);
  return vreinterpretq_f64_u64(vaddq_u64(bits, vdupq_n_u64(0x3FF0000000000000)));
}
#define FORERUN_PART(p) power_of_two_128(x.p)
FORERUN_INLINE F64 power_of_two(F64 x) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE double sum(F64 x) {
  const float64x2_t s = vaddq_f64(vaddq_f64(x.a, x.e), vaddq_f64(x.c, x.g));
  const float64x2_t t = vaddq_f64(vaddq_f64(x.b, x.f), vaddq_f64(x.d, x.h));
  return vpaddd_f64(vaddq_f64(s, t));
}

FORERUN_INLINE U64 broadcast_u64(uint64_t x) {
  const uint64x2_t v = vdupq_n_u64(x);
  return {v, v, v, v, v, v, v, v};
}
FORERUN_INLINE U64 load_u64(const uint64_t* p) {
  return {vld1q_u64(p),     vld1q_u64(p + 2),  vld1q_u64(p + 4),  vld1q_u64(p + 6),
          vld1q_u64(p + 8), vld1q_u64(p + 10), vld1q_u64(p + 12), vld1q_u64(p + 14)};
}
#define FORERUN_PART(p) vaddq_u64(x.p, y.p)
FORERUN_INLINE U64 operator+(U64 x, U64 y) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) veorq_u64(x.p, y.p)
FORERUN_INLINE U64 operator^(U64 x, U64 y) { return FORERUN_EIGHT(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE U64 shift_right(U64 x, int count) {
  const int64x2_t by = vdupq_n_s64(-count);
#define FORERUN_PART(p) vshlq_u64(x.p, by)
  return FORERUN_EIGHT(FORERUN_PART);
#undef FORERUN_PART
}
// There is no 64-bit product: low x low, plus the two mixed products moved up by 32 bits.
FORERUN_INLINE uint64x2_t multiply_128(uint64x2_t x, uint32x2_t low, uint32x2_t high) {
  const uint32x2_t x_low = vmovn_u64(x), x_high = vshrn_n_u64(x, 32);
  const uint64x2_t mixed = vmlal_u32(vmull_u32(x_high, low), x_low, high);
  return vmlal_u32(vshlq_n_u64(mixed, 32), x_low, low);
}
FORERUN_INLINE U64 multiply(U64 x, uint64_t constant) {
  const uint32x2_t low = vdup_n_u32(uint32_t(constant)), high = vdup_n_u32(uint32_t(constant >> 32));
#define FORERUN_PART(p) multiply_128(x.p, low, high)
  return FORERUN_EIGHT(FORERUN_PART);
#undef FORERUN_PART
}
FORERUN_INLINE float32x4_t top_24_of(uint64x2_t x, uint64x2_t y) {
  return vcvtq_f32_u32(vmovn_high_u64(vmovn_u64(vshrq_n_u64(x, 40)), vshrq_n_u64(y, 40)));
}
FORERUN_INLINE F32 top_24(U64 x) {
  return {top_24_of(x.a, x.b), top_24_of(x.c, x.d), top_24_of(x.e, x.f), top_24_of(x.g, x.h)};
}

FORERUN_INLINE I32 truncate(F32 x) {
  return {vcvtq_s32_f32(x.a), vcvtq_s32_f32(x.b), vcvtq_s32_f32(x.c), vcvtq_s32_f32(x.d)};
}

FORERUN_INLINE uint32_t at_least(F32 x, F32 limit) {
  const uint16x8_t low = vmovn_high_u32(vmovn_u32(vcgeq_f32(x.a, limit.a)), vcgeq_f32(x.b, limit.b));
  const uint16x8_t high = vmovn_high_u32(vmovn_u32(vcgeq_f32(x.c, limit.c)), vcgeq_f32(x.d, limit.d));
  alignas(16) static const uint16_t bit_of_lane[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t bit = vld1q_u16(bit_of_lane);
  return uint32_t(vaddvq_u16(vandq_u16(low, bit))) | uint32_t(vaddvq_u16(vandq_u16(high, bit))) << 8;
}

#undef FORERUN_EIGHT

}  // namespace
}  // namespace forerun::FORERUN_ISA
