// Products of weights' codes with activations in AVX-512 VNNI: products_portable.h says what each function means.
//
// Four activations are one operand in memory that the instruction spreads over its lanes. gcc 12 would load and spread
// them separately, which costs 2 % with eight rows, hence the assembly.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 8;
constexpr int kFloatRowsAtOnce = 8;

typedef int32_t __attribute__((may_alias)) Word;

template <int kCount, int kMask>
FORERUN_INLINE Bytes bits(Bytes x) {
  const __m512i mask = _mm512_set1_epi8(char(kMask));
  if (kCount == 0) return {_mm512_and_si512(x.v, mask)};
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, kCount), mask)};
}
template <int kFrom, int kTo, int kMask>
FORERUN_INLINE Bytes moved(Bytes x) {
  const __m512i mask = _mm512_set1_epi8(char(kMask << kTo));
  constexpr int kLeft = kTo > kFrom ? kTo - kFrom : 0, kRight = kFrom > kTo ? kFrom - kTo : 0;
  if (kLeft > 0) return {_mm512_and_si512(_mm512_slli_epi16(x.v, kLeft), mask)};
  return {_mm512_and_si512(_mm512_srli_epi16(x.v, kRight), mask)};
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_bit(Bytes x) {
  return moved<kFrom, kTo, 1>(x);
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_two_bits(Bytes x) {
  return moved<kFrom, kTo, 3>(x);
}
FORERUN_INLINE Bytes operator|(Bytes x, Bytes y) { return {_mm512_or_si512(x.v, y.v)}; }
FORERUN_INLINE void store_bytes(void* p, Bytes x) { _mm512_storeu_si512(p, x.v); }

FORERUN_INLINE __m512i dot_spread(__m512i acc, __m512i codes, const void* four) {
#if defined(FORERUN_ASSEMBLY)
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(codes), "m"(*(const Word*)four));
  return acc;
#else
  return _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(*(const Word*)four));
#endif
}

struct Table {
  __m512i v;
};
FORERUN_INLINE Table load_table(const uint8_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)p))};
}
FORERUN_INLINE Bytes look_up(Table t, Bytes codes) { return {_mm512_shuffle_epi8(t.v, codes.v)}; }

struct Sums {
  __m512i v;
};
constexpr bool kWideSums = true;
FORERUN_INLINE Sums no_sums() { return {_mm512_setzero_si512()}; }
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) { return low + high; }
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  return {_mm512_slli_epi32(_mm512_set1_epi32(*word), kShift)};
}
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) { s.v = dot_spread(s.v, codes.v, x); }
FORERUN_INLINE I32 total(Sums s) { return {s.v}; }

// A sum's low half is all of it: the factor's high half is 0.
struct Factors {
  __m512i v;
};
template <int kOffset>
FORERUN_INLINE Factors load_factors(const uint8_t* p) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
  if (kOffset == 0) return {x};
  return {_mm512_and_si512(_mm512_sub_epi32(x, _mm512_set1_epi32(kOffset)), _mm512_set1_epi32(0xFFFF))};
}
FORERUN_INLINE I32 add_scaled(I32 acc, Sums s, Factors f) {
#if defined(FORERUN_ASSEMBLY)
  asm("vpdpwssd %2, %1, %0" : "+v"(acc.v) : "v"(s.v), "v"(f.v));
  return acc;
#else
  return {_mm512_dpwssd_epi32(acc.v, s.v, f.v)};
#endif
}

struct Codes8 {
  __m512i v;
};
FORERUN_INLINE Codes8 codes8(Bytes x) { return {x.v}; }
FORERUN_INLINE I32 start8(const int32_t* word) { return {_mm512_slli_epi32(_mm512_set1_epi32(*word), 7)}; }
FORERUN_INLINE void add_products8(I32& s, Codes8 codes, const int8_t* x) { s.v = dot_spread(s.v, codes.v, x); }

FORERUN_INLINE Bytes widen_pairs(const uint8_t* p) {
  return {_mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)p))};
}
FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
#if defined(FORERUN_ASSEMBLY)
  asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(acc.v) : "v"(pairs.v), "m"(*word));
  return acc;
#else
  return {_mm512_dpwssd_epi32(acc.v, pairs.v, _mm512_set1_epi32(*word))};
#endif
}
FORERUN_INLINE I32 shift_left_each(I32 x, const int32_t* count) {
  return {_mm512_sllv_epi32(x.v, _mm512_set1_epi32(*count))};
}

FORERUN_INLINE void store_i8(int8_t* p, I32 x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(x.v)); }
FORERUN_INLINE void pair_totals(I32 x, I32 y, int32_t* to) {
  const __m256i a = _mm256_add_epi32(_mm512_castsi512_si256(x.v), _mm512_extracti64x4_epi64(x.v, 1));
  const __m256i b = _mm256_add_epi32(_mm512_castsi512_si256(y.v), _mm512_extracti64x4_epi64(y.v, 1));
  const __m256i pairs = _mm256_hadd_epi32(a, b);
  _mm_storeu_si128((__m128i*)to, _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
