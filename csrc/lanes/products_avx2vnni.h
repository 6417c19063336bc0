// Products of weights' codes with activations in AVX2 with AVX-VNNI: products_portable.h says what each function means.
//
// The instructions are AVX-512 VNNI's in registers of half the size, without its operands spread from memory.
#pragma once

#include "lanes/bytes_avx2.h"

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 6;
constexpr int kFloatRowsAtOnce = 2;

struct Sums {
  __m256i a, b;
};
FORERUN_INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) { return low + high; }
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  const __m256i start = _mm256_slli_epi32(broadcast_word(word), kShift);
  return {start, start};
}
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) {
  const __m256i four = broadcast_word(x);
  s.a = _mm256_dpbusd_avx_epi32(s.a, codes.a, four);
  s.b = _mm256_dpbusd_avx_epi32(s.b, codes.b, four);
}
FORERUN_INLINE I32 total(Sums s) { return {s.a, s.b}; }

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
  s.a = _mm256_dpbusd_avx_epi32(s.a, codes.v.a, four);
  s.b = _mm256_dpbusd_avx_epi32(s.b, codes.v.b, four);
}

FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  const __m256i two = broadcast_word(word);
  return {_mm256_dpwssd_avx_epi32(acc.a, pairs.a, two), _mm256_dpwssd_avx_epi32(acc.b, pairs.b, two)};
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
