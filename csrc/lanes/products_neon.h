// Products of weights' codes with activations in ARM's dot products: products_portable.h says what each function means.
//
// Codes below 128 are the same numbers with a sign and without, and codes of 8 bits get theirs, so that SDOT, which
// multiplies signed bytes, serves all of them.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 5;
constexpr int kFloatRowsAtOnce = 2;

typedef int32_t __attribute__((may_alias)) Word;

// Shifts by 0 are not encoded.
template <int kLeft, int kRight>
FORERUN_INLINE uint8x16_t shifted(uint8x16_t x) {
  if constexpr (kLeft > 0)
    return vshlq_n_u8(x, kLeft);
  else if constexpr (kRight > 0)
    return vshrq_n_u8(x, kRight);
  else
    return x;
}
template <int kFrom, int kTo, int kMask>
FORERUN_INLINE Bytes moved(Bytes x) {
  constexpr int kLeft = kTo > kFrom ? kTo - kFrom : 0, kRight = kFrom > kTo ? kFrom - kTo : 0;
  const uint8x16_t mask = vdupq_n_u8(uint8_t(kMask << kTo));
#define FORERUN_PART(p) vandq_u8(shifted<kLeft, kRight>(x.p), mask)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}
template <int kCount, int kMask>
FORERUN_INLINE Bytes bits(Bytes x) {
  if constexpr (kMask != 255 >> kCount) return moved<kCount, 0, kMask>(x);
#define FORERUN_PART(p) shifted<0, kCount>(x.p)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_bit(Bytes x) {
  return moved<kFrom, kTo, 1>(x);
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_two_bits(Bytes x) {
  return moved<kFrom, kTo, 3>(x);
}
#define FORERUN_PART(p) vorrq_u8(x.p, y.p)
FORERUN_INLINE Bytes operator|(Bytes x, Bytes y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE void store_bytes(void* p, Bytes x) {
  uint8_t* q = (uint8_t*)p;
  vst1q_u8(q, x.a);
  vst1q_u8(q + 16, x.b);
  vst1q_u8(q + 32, x.c);
  vst1q_u8(q + 48, x.d);
}

struct Table {
  uint8x16_t v;
};
FORERUN_INLINE Table load_table(const uint8_t* p) { return {vld1q_u8(p)}; }
FORERUN_INLINE Bytes look_up(Table t, Bytes codes) {
#define FORERUN_PART(p) vqtbl1q_u8(t.v, codes.p)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}

// acc[lane] += the four signed bytes of the lane times the four at p
FORERUN_INLINE I32 dot_spread(I32 acc, Bytes codes, const void* p) {
  const int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(*(const Word*)p));
#define FORERUN_PART(p) vdotq_s32(acc.p, vreinterpretq_s8_u8(codes.p), four)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}

struct Sums {
  I32 v;
};
constexpr bool kWideSums = true;
FORERUN_INLINE Sums no_sums() { return {broadcast_i32(0)}; }
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) { return low + high; }
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  const int32x4_t start = vshlq_n_s32(vdupq_n_s32(*word), kShift);
  return {{start, start, start, start}};
}
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) { s.v = dot_spread(s.v, codes, x); }
FORERUN_INLINE I32 total(Sums s) { return s.v; }

struct Factors {
  I32 v;
};
template <int kOffset>
FORERUN_INLINE Factors load_factors(const uint8_t* p) {
  return {widen_u8(p) - broadcast_i32(kOffset)};
}
FORERUN_INLINE I32 add_scaled(I32 acc, Sums s, Factors f) {
#define FORERUN_PART(p) vmlaq_s32(acc.p, s.v.p, f.v.p)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}

struct Codes8 {
  Bytes v;
};
FORERUN_INLINE Codes8 codes8(Bytes x) {
  const uint8x16_t offset = vdupq_n_u8(0x80);
#define FORERUN_PART(p) veorq_u8(x.p, offset)
  return {FORERUN_FOUR(FORERUN_PART)};
#undef FORERUN_PART
}
FORERUN_INLINE I32 start8(const int32_t*) { return broadcast_i32(0); }
FORERUN_INLINE void add_products8(I32& s, Codes8 codes, const int8_t* x) { s = dot_spread(s, codes.v, x); }

// Even numbers of the pairs, then odd ones, so that products are added as they are made.
FORERUN_INLINE Bytes widen_pairs(const uint8_t* p) {
  const uint8x16x2_t both = vld2q_u8(p);
#define FORERUN_LOW(x) vreinterpretq_u8_u16(vmovl_u8(vget_low_u8(x)))
#define FORERUN_HIGH(x) vreinterpretq_u8_u16(vmovl_high_u8(x))
  return {FORERUN_LOW(both.val[0]), FORERUN_HIGH(both.val[0]), FORERUN_LOW(both.val[1]), FORERUN_HIGH(both.val[1])};
#undef FORERUN_LOW
#undef FORERUN_HIGH
}
FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  const int16x4_t two = vreinterpret_s16_s32(vdup_n_s32(*word));
  const int16x8_t even_low = vreinterpretq_s16_u8(pairs.a), even_high = vreinterpretq_s16_u8(pairs.b);
  const int16x8_t odd_low = vreinterpretq_s16_u8(pairs.c), odd_high = vreinterpretq_s16_u8(pairs.d);
  acc.a = vmlal_lane_s16(vmlal_lane_s16(acc.a, vget_low_s16(even_low), two, 0), vget_low_s16(odd_low), two, 1);
  acc.b = vmlal_high_lane_s16(vmlal_high_lane_s16(acc.b, even_low, two, 0), odd_low, two, 1);
  acc.c = vmlal_lane_s16(vmlal_lane_s16(acc.c, vget_low_s16(even_high), two, 0), vget_low_s16(odd_high), two, 1);
  acc.d = vmlal_high_lane_s16(vmlal_high_lane_s16(acc.d, even_high, two, 0), odd_high, two, 1);
  return acc;
}
FORERUN_INLINE I32 shift_left_each(I32 x, const int32_t* count) { return shift_left(x, *count); }

FORERUN_INLINE void store_i8(int8_t* p, I32 x) {
  const int16x8_t low = vmovn_high_s32(vmovn_s32(x.a), x.b), high = vmovn_high_s32(vmovn_s32(x.c), x.d);
  vst1q_s8(p, vmovn_high_s16(vmovn_s16(low), high));
}
FORERUN_INLINE void pair_totals(I32 x, I32 y, int32_t* to) {
  const int32x4_t a = vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d));
  const int32x4_t b = vaddq_s32(vaddq_s32(y.a, y.b), vaddq_s32(y.c, y.d));
  vst1q_s32(to, vpaddq_s32(a, b));
}

#undef FORERUN_FOUR

}  // namespace
}  // namespace forerun::FORERUN_ISA
