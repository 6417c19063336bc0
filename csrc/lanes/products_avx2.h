// Products of weights' codes with activations in AVX2: products_portable.h says what each function means.
//
// vpmaddubsw multiplies bytes and adds them in pairs to 16 bits. Codes below 64 leave room to add the pairs of a whole
// group in 16 bits, and to widen once at its end.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

constexpr int kRowsAtOnce = 6;
constexpr int kFloatRowsAtOnce = 2;

// Adds where it is written: gcc would otherwise reorder a chain of integer sums, compute all products first, and run
// out of registers.
#define FORERUN_PIN(x) asm("" : "+x"(x))

typedef int32_t __attribute__((may_alias)) Word;
FORERUN_INLINE __m256i broadcast_word(const void* p) { return _mm256_set1_epi32(*(const Word*)p); }

template <int kCount, int kMask>
FORERUN_INLINE Bytes bits(Bytes x) {
  const __m256i mask = _mm256_set1_epi8(char(kMask));
  if (kCount == 0) return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, kCount), mask),
          _mm256_and_si256(_mm256_srli_epi16(x.b, kCount), mask)};
}
template <int kFrom, int kTo, int kMask>
FORERUN_INLINE Bytes moved(Bytes x) {
  const __m256i mask = _mm256_set1_epi8(char(kMask << kTo));
  constexpr int kLeft = kTo > kFrom ? kTo - kFrom : 0, kRight = kFrom > kTo ? kFrom - kTo : 0;
  if (kLeft > 0)
    return {_mm256_and_si256(_mm256_slli_epi16(x.a, kLeft), mask),
            _mm256_and_si256(_mm256_slli_epi16(x.b, kLeft), mask)};
  return {_mm256_and_si256(_mm256_srli_epi16(x.a, kRight), mask),
          _mm256_and_si256(_mm256_srli_epi16(x.b, kRight), mask)};
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_bit(Bytes x) {
  return moved<kFrom, kTo, 1>(x);
}
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_two_bits(Bytes x) {
  return moved<kFrom, kTo, 3>(x);
}
FORERUN_INLINE Bytes operator|(Bytes x, Bytes y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
FORERUN_INLINE void store_bytes(void* p, Bytes x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)p + 1, x.b);
}

struct Table {
  __m256i v;
};
FORERUN_INLINE Table load_table(const uint8_t* p) {
  return {_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)p))};
}
FORERUN_INLINE Bytes look_up(Table t, Bytes codes) {
  return {_mm256_shuffle_epi8(t.v, codes.a), _mm256_shuffle_epi8(t.v, codes.b)};
}

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

FORERUN_INLINE Bytes widen_pairs(const uint8_t* p) {
  return {_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p + 1))};
}
FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  const __m256i two = broadcast_word(word);
  return {_mm256_add_epi32(acc.a, _mm256_madd_epi16(pairs.a, two)),
          _mm256_add_epi32(acc.b, _mm256_madd_epi16(pairs.b, two))};
}
FORERUN_INLINE I32 shift_left_each(I32 x, const int32_t* count) {
  const __m256i c = broadcast_word(count);
  return {_mm256_sllv_epi32(x.a, c), _mm256_sllv_epi32(x.b, c)};
}

FORERUN_INLINE void store_i8(int8_t* p, I32 x) {
  const __m256i words = _mm256_packs_epi32(x.a, x.b);  // a0-3 b0-3 | a4-7 b4-7
  const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128((__m128i*)p, _mm_shuffle_epi32(bytes, 0xD8));
}
FORERUN_INLINE void pair_totals(I32 x, I32 y, int32_t* to) {
  const __m256i pairs = _mm256_hadd_epi32(_mm256_add_epi32(x.a, x.b), _mm256_add_epi32(y.a, y.b));
  _mm_storeu_si128((__m128i*)to, _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1)));
}

#undef FORERUN_PIN

}  // namespace
}  // namespace forerun::FORERUN_ISA
