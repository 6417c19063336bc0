// Products of weights' codes with activations in AVX2: products_portable.h says what each function means.
//
// vpmaddubsw multiplies bytes and adds them in pairs to 16 bits. Codes below 64 leave room to add the pairs of a whole
// group in 16 bits, and to widen once at its end.
#pragma once

#include "lanes/bytes_avx2.h"

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 6;
constexpr int kFloatRowsAtOnce = 2;

// Adds where it is written: gcc would otherwise reorder a chain of integer sums, compute all products first, and run
// out of registers.
#define FORERUN_PIN(x) asm("" : "+x"(x))

struct Sums {
  __m256i a, b;
};
constexpr bool kWideSums = false;
FORERUN_INLINE Sums no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) {
  return int32_t((uint32_t(low) & 0xFFFF) | uint32_t(high) << 16);
}
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  const __m256i start = _mm256_slli_epi16(broadcast_word(word), kShift);
  return {start, start};
}
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) {
  const __m256i four = broadcast_word(x);
  s.a = _mm256_add_epi16(s.a, _mm256_maddubs_epi16(codes.a, four));
  s.b = _mm256_add_epi16(s.b, _mm256_maddubs_epi16(codes.b, four));
  FORERUN_PIN(s.a);
  FORERUN_PIN(s.b);
}
FORERUN_INLINE I32 total(Sums s) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(s.a, ones), _mm256_madd_epi16(s.b, ones)};
}

// A factor beside each of a lane's two sums.
struct Factors {
  __m256i a, b;
};
template <int kOffset>
FORERUN_INLINE Factors load_factors(const uint8_t* p) {
  const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p));
  const __m256i twice = _mm256_set_epi32(  // byte i of 0 .. 7 as two numbers of 16 bits
      int(0x80078007u), int(0x80068006u), int(0x80058005u), int(0x80048004u), int(0x80038003u), int(0x80028002u),
      int(0x80018001u), int(0x80008000u));
  const __m256i next = _mm256_add_epi8(twice, _mm256_set1_epi16(8));
  const __m256i offset = _mm256_set1_epi16(kOffset);
  return {_mm256_sub_epi16(_mm256_shuffle_epi8(bytes, twice), offset),
          _mm256_sub_epi16(_mm256_shuffle_epi8(bytes, next), offset)};
}
FORERUN_INLINE I32 add_scaled(I32 acc, Sums s, Factors f) {
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(s.a, f.a)), _mm256_add_epi32(acc.b, _mm256_madd_epi16(s.b, f.b))};
}

// vpmaddubsw wants one unsigned factor: |code| times the activation under the code's sign.
struct Codes8 {
  __m256i sign_a, sign_b, size_a, size_b;
};
FORERUN_INLINE Codes8 codes8(Bytes x) {
  const __m256i offset = _mm256_set1_epi8(char(0x80));
  const __m256i a = _mm256_xor_si256(x.a, offset), b = _mm256_xor_si256(x.b, offset);
  return {a, b, _mm256_abs_epi8(a), _mm256_abs_epi8(b)};
}
FORERUN_INLINE I32 start8(const int32_t*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FORERUN_INLINE void add_products8(I32& s, Codes8 codes, const int8_t* x) {
  const __m256i four = broadcast_word(x), ones = _mm256_set1_epi16(1);
  const __m256i a = _mm256_maddubs_epi16(codes.size_a, _mm256_sign_epi8(four, codes.sign_a));
  const __m256i b = _mm256_maddubs_epi16(codes.size_b, _mm256_sign_epi8(four, codes.sign_b));
  s.a = _mm256_add_epi32(s.a, _mm256_madd_epi16(a, ones));
  s.b = _mm256_add_epi32(s.b, _mm256_madd_epi16(b, ones));
  FORERUN_PIN(s.a);
  FORERUN_PIN(s.b);
}

FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  const __m256i two = broadcast_word(word);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, two)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, two))};
}

#undef FORERUN_PIN

}  // namespace
}  // namespace forerun::FORERUN_ISA
