// What AVX2's products share, with VNNI or without: unpacking of codes, and activations' bytes and sums.
// products_portable.h says what each function means.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

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

FORERUN_INLINE Bytes widen_pairs(const uint8_t* p) {
  return {_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p + 1))};
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

}  // namespace
}  // namespace forerun::FORERUN_ISA
