// Pairs of 16-bit integers in lanes, for exact dot products: twice the multiplications of float32 in the same time.
//
// Pairs        32 int16, lane i owning numbers 2i and 2i + 1
// load_pairs, broadcast_pair (two numbers to all lanes), dot(acc, x, y) = acc + x[2i] y[2i] + x[2i + 1] y[2i + 1]
// (modulo 2^32; no number may be -32768), store_i16(I32): lanes that fit 16 bits
//
// The assembly (lanes.h: where gcc needs it) says that a sum stays in its register: gcc 12 otherwise copies sums about,
// or spills them.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

typedef int32_t __attribute__((may_alias)) TwoShorts;

#if defined(FORERUN_LANES_AVX512)

struct Pairs {
  __m512i v;
};
FORERUN_INLINE Pairs load_pairs(const int16_t* p) { return {_mm512_loadu_si512(p)}; }
FORERUN_INLINE Pairs broadcast_pair(const int16_t* p) { return {_mm512_set1_epi32(*(const TwoShorts*)p)}; }
FORERUN_INLINE I32 dot(I32 acc, Pairs x, Pairs y) {
#if defined(FORERUN_ASSEMBLY)
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(x.v), "v"(y.v));
  return acc;
#else
  return {_mm512_dpwssd_epi32(acc.v, x.v, y.v)};
#endif
}
FORERUN_INLINE void store_i16(int16_t* p, I32 x) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(x.v)); }

#elif defined(FORERUN_LANES_AVX2)

struct Pairs {
  __m256i a, b;
};
FORERUN_INLINE Pairs load_pairs(const int16_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
FORERUN_INLINE Pairs broadcast_pair(const int16_t* p) {
  const __m256i both = _mm256_set1_epi32(*(const TwoShorts*)p);
  return {both, both};
}
#if defined(FORERUN_LANES_AVX2VNNI)
FORERUN_INLINE I32 dot(I32 acc, Pairs x, Pairs y) {
  return {dot_words(acc.a, x.a, y.a), dot_words(acc.b, x.b, y.b)};
}
#else
FORERUN_INLINE I32 dot(I32 acc, Pairs x, Pairs y) {
  const __m256i a = _mm256_madd_epi16(x.a, y.a), b = _mm256_madd_epi16(x.b, y.b);
#if defined(FORERUN_ASSEMBLY)
  asm("vpaddd %1, %0, %0" : "+x"(acc.a) : "x"(a));
  asm("vpaddd %1, %0, %0" : "+x"(acc.b) : "x"(b));
#else
  acc.a = _mm256_add_epi32(acc.a, a);
  acc.b = _mm256_add_epi32(acc.b, b);
#endif
  return acc;
}
#endif
FORERUN_INLINE void store_i16(int16_t* p, I32 x) {
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xD8));
}

#elif defined(FORERUN_LANES_NEON)

// Even and odd numbers apart, eight lanes to a register: products are then added as they are made.
struct Pairs {
  int16x8x2_t a, b;
};
FORERUN_INLINE Pairs load_pairs(const int16_t* p) { return {vld2q_s16(p), vld2q_s16(p + 16)}; }
FORERUN_INLINE Pairs broadcast_pair(const int16_t* p) {
  const int16x8x2_t both = vld2q_dup_s16(p);
  return {both, both};
}
FORERUN_INLINE int32x4_t dot_low(int32x4_t acc, int16x8x2_t x, int16x8x2_t y) {
  acc = vmlal_s16(acc, vget_low_s16(x.val[0]), vget_low_s16(y.val[0]));
  return vmlal_s16(acc, vget_low_s16(x.val[1]), vget_low_s16(y.val[1]));
}
FORERUN_INLINE int32x4_t dot_high(int32x4_t acc, int16x8x2_t x, int16x8x2_t y) {
  return vmlal_high_s16(vmlal_high_s16(acc, x.val[0], y.val[0]), x.val[1], y.val[1]);
}
FORERUN_INLINE I32 dot(I32 acc, Pairs x, Pairs y) {
  return {dot_low(acc.a, x.a, y.a), dot_high(acc.b, x.a, y.a), dot_low(acc.c, x.b, y.b), dot_high(acc.d, x.b, y.b)};
}
FORERUN_INLINE void store_i16(int16_t* p, I32 x) {
  vst1q_s16(p, vmovn_high_s32(vmovn_s32(x.a), x.b));
  vst1q_s16(p + 8, vmovn_high_s32(vmovn_s32(x.c), x.d));
}

#else

struct Pairs {
  int16_t v[32];
};
FORERUN_INLINE Pairs load_pairs(const int16_t* p) {
  Pairs r;
  for (int i = 0; i < 32; ++i) r.v[i] = p[i];
  return r;
}
FORERUN_INLINE Pairs broadcast_pair(const int16_t* p) {
  Pairs r;
  for (int i = 0; i < 32; ++i) r.v[i] = p[i % 2];
  return r;
}
FORERUN_INLINE I32 dot(I32 acc, Pairs x, Pairs y) {
  for (int i = 0; i < 16; ++i) {
    const int32_t even = int32_t(x.v[2 * i]) * y.v[2 * i], odd = int32_t(x.v[2 * i + 1]) * y.v[2 * i + 1];
    acc.v[i] = int32_t(uint32_t(acc.v[i]) + uint32_t(even) + uint32_t(odd));
  }
  return acc;
}
FORERUN_INLINE void store_i16(int16_t* p, I32 x) {
  for (int i = 0; i < 16; ++i) p[i] = int16_t(x.v[i]);
}

#endif

}  // namespace
}  // namespace forerun::FORERUN_ISA
