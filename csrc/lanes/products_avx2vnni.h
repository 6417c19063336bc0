// Products of weights' codes with activations in AVX2 with AVX-VNNI: products_portable.h says what each function means.
//
// The instructions are AVX-512 VNNI's in registers of half the size, without its operands spread from memory. Where gcc
// needs it (lanes.h), they are written out: it would otherwise copy sums about. {vex} tells them from AVX-512's.
#pragma once

#include "lanes/bytes_avx2.h"

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 5;
constexpr int kFloatRowsAtOnce = 2;

#if defined(FORERUN_MODEL_VNNI)  // what the instructions do, in AVX2: for tests where there is no AVX-VNNI
FORERUN_INLINE __m256i dot_words(__m256i acc, __m256i x, __m256i y) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(x, y));
}
FORERUN_INLINE __m256i dot_bytes(__m256i acc, __m256i codes, __m256i x) {
  const __m256i even_codes = _mm256_and_si256(codes, _mm256_set1_epi16(255)), odd_codes = _mm256_srli_epi16(codes, 8);
  const __m256i even_x = _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), odd_x = _mm256_srai_epi16(x, 8);
  return dot_words(dot_words(acc, even_codes, even_x), odd_codes, odd_x);
}
#else
FORERUN_INLINE __m256i dot_bytes(__m256i acc, __m256i codes, __m256i x) {
#if defined(FORERUN_ASSEMBLY)
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(codes), "x"(x));
  return acc;
#else
  return _mm256_dpbusd_avx_epi32(acc, codes, x);
#endif
}
FORERUN_INLINE __m256i dot_words(__m256i acc, __m256i x, __m256i y) {
#if defined(FORERUN_ASSEMBLY)
  asm("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(x), "x"(y));
  return acc;
#else
  return _mm256_dpwssd_avx_epi32(acc, x, y);
#endif
}
#endif

struct Sums {
  __m256i a, b;
};
constexpr bool kWideSums = true;
FORERUN_INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) { return low + high; }
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  const __m256i start = _mm256_slli_epi32(broadcast_word(word), kShift);
  return {start, start};
}
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) {
  const __m256i four = broadcast_word(x);
  s.a = dot_bytes(s.a, codes.a, four);
  s.b = dot_bytes(s.b, codes.b, four);
}
FORERUN_INLINE I32 total(Sums s) { return {s.a, s.b}; }

// A sum's low half is all of it: the factor's high half is 0.
struct Factors {
  __m256i a, b;
};
template <int kOffset>
FORERUN_INLINE Factors load_factors(const uint8_t* p) {
  const I32 x = widen_u8(p);
  if (kOffset == 0) return {x.a, x.b};
  const __m256i offset = _mm256_set1_epi32(kOffset), low = _mm256_set1_epi32(0xFFFF);
  return {_mm256_and_si256(_mm256_sub_epi32(x.a, offset), low), _mm256_and_si256(_mm256_sub_epi32(x.b, offset), low)};
}
FORERUN_INLINE I32 add_scaled(I32 acc, Sums s, Factors f) {
  return {dot_words(acc.a, s.a, f.a), dot_words(acc.b, s.b, f.b)};
}

struct Codes8 {
  Bytes v;
};
FORERUN_INLINE Codes8 codes8(Bytes x) { return {x}; }
FORERUN_INLINE I32 start8(const int32_t* word) {
  const Sums start = start_sums<7>(word);
  return {start.a, start.b};
}
FORERUN_INLINE void add_products8(I32& s, Codes8 codes, const int8_t* x) {
  const __m256i four = broadcast_word(x);
  s.a = dot_bytes(s.a, codes.v.a, four);
  s.b = dot_bytes(s.b, codes.v.b, four);
}

FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  const __m256i two = broadcast_word(word);
  return {dot_words(acc.a, pairs.a, two), dot_words(acc.b, pairs.b, two)};
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
