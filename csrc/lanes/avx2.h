// Lanes as two 256-bit registers: AVX2, FMA and F16C (Haswell 2013, Zen 2017, and later).
#pragma once

#include <immintrin.h>

namespace forerun::FORERUN_ISA {
namespace {

struct F32 {
  __m256 a, b;
};
struct I32 {
  __m256i a, b;
};
struct Bytes {
  __m256i a, b;
};

FORERUN_INLINE F32 broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FORERUN_INLINE F32 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
FORERUN_INLINE F32 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FORERUN_INLINE void store(float* p, F32 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
FORERUN_INLINE F32 load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
FORERUN_INLINE __m256 bf16_half(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
FORERUN_INLINE F32 load_bf16(const uint16_t* p) { return {bf16_half(p), bf16_half(p + 8)}; }

FORERUN_INLINE F32 operator+(F32 x, F32 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
FORERUN_INLINE F32 operator-(F32 x, F32 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
FORERUN_INLINE F32 operator*(F32 x, F32 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
FORERUN_INLINE F32 operator/(F32 x, F32 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
FORERUN_INLINE F32 fma(F32 x, F32 y, F32 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
FORERUN_INLINE F32 fnma(F32 x, F32 y, F32 z) {
  return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)};
}
FORERUN_INLINE F32 max(F32 x, F32 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
FORERUN_INLINE F32 min(F32 x, F32 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
FORERUN_INLINE F32 abs(F32 x) {
  __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
FORERUN_INLINE F32 zero_where_below(F32 x, F32 y, F32 limit) {
  return {_mm256_and_ps(x.a, _mm256_cmp_ps(y.a, limit.a, _CMP_GE_OQ)),
          _mm256_and_ps(x.b, _mm256_cmp_ps(y.b, limit.b, _CMP_GE_OQ))};
}

FORERUN_INLINE I32 broadcast_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
FORERUN_INLINE I32 load_i32(const int32_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
FORERUN_INLINE void store_i32(int32_t* p, I32 x) {
  _mm256_storeu_si256((__m256i*)p, x.a);
  _mm256_storeu_si256((__m256i*)(p + 8), x.b);
}
FORERUN_INLINE I32 widen_u8(const uint8_t* p) {
  __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
FORERUN_INLINE I32 widen_i8(const int8_t* p) {
  __m128i x = _mm_loadu_si128((const __m128i*)p);
  return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
FORERUN_INLINE I32 operator+(I32 x, I32 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
FORERUN_INLINE I32 operator-(I32 x, I32 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
FORERUN_INLINE I32 shift_left(I32 x, int count) {
  __m128i c = _mm_cvtsi32_si128(count);
  return {_mm256_sll_epi32(x.a, c), _mm256_sll_epi32(x.b, c)};
}
FORERUN_INLINE F32 to_f32(I32 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
FORERUN_INLINE I32 round_to_i32(F32 x) {
  __m256 magic = _mm256_set1_ps(12582912.0f);
  __m256i base = _mm256_set1_epi32(0x4B400000);
  return {_mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x.a, magic)), base),
          _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(x.b, magic)), base)};
}
FORERUN_INLINE F32 from_bits(I32 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }

FORERUN_INLINE Bytes load_bytes(const void* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)p + 1)};
}
FORERUN_INLINE float sum(F32 x) {
  __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FORERUN_INLINE float largest(F32 x) {
  __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FORERUN_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

}  // namespace
}  // namespace forerun::FORERUN_ISA
