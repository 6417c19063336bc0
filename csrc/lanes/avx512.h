// Lanes as one 512-bit register: AVX-512 F, BW, DQ, VL and VNNI (Ice Lake 2019, Zen 4 2022, and later).
#pragma once

#include <immintrin.h>

namespace forerun::FORERUN_ISA {
namespace {

struct F32 {
  __m512 v;
};
struct I32 {
  __m512i v;
};
struct Bytes {
  __m512i v;
};

FORERUN_INLINE F32 broadcast(float x) { return {_mm512_set1_ps(x)}; }
FORERUN_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
FORERUN_INLINE F32 load(const float* p) { return {_mm512_loadu_ps(p)}; }
FORERUN_INLINE void store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
FORERUN_INLINE F32 load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
FORERUN_INLINE F32 load_bf16(const uint16_t* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}

FORERUN_INLINE F32 operator+(F32 x, F32 y) { return {_mm512_add_ps(x.v, y.v)}; }
FORERUN_INLINE F32 operator-(F32 x, F32 y) { return {_mm512_sub_ps(x.v, y.v)}; }
FORERUN_INLINE F32 operator*(F32 x, F32 y) { return {_mm512_mul_ps(x.v, y.v)}; }
FORERUN_INLINE F32 operator/(F32 x, F32 y) { return {_mm512_div_ps(x.v, y.v)}; }
FORERUN_INLINE F32 fma(F32 x, F32 y, F32 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
FORERUN_INLINE F32 fnma(F32 x, F32 y, F32 z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
FORERUN_INLINE F32 max(F32 x, F32 y) { return {_mm512_max_ps(x.v, y.v)}; }
FORERUN_INLINE F32 min(F32 x, F32 y) { return {_mm512_min_ps(x.v, y.v)}; }
FORERUN_INLINE F32 abs(F32 x) { return {_mm512_abs_ps(x.v)}; }
FORERUN_INLINE F32 zero_where_below(F32 x, F32 y, F32 limit) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.v, limit.v, _CMP_GE_OQ), x.v)};
}

FORERUN_INLINE I32 broadcast_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
FORERUN_INLINE I32 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
FORERUN_INLINE void store_i32(int32_t* p, I32 x) { _mm512_storeu_si512(p, x.v); }
FORERUN_INLINE I32 widen_u8(const uint8_t* p) { return {_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
FORERUN_INLINE I32 widen_i8(const int8_t* p) { return {_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p))}; }
FORERUN_INLINE I32 operator+(I32 x, I32 y) { return {_mm512_add_epi32(x.v, y.v)}; }
FORERUN_INLINE I32 operator-(I32 x, I32 y) { return {_mm512_sub_epi32(x.v, y.v)}; }
FORERUN_INLINE I32 shift_left(I32 x, int count) { return {_mm512_sll_epi32(x.v, _mm_cvtsi32_si128(count))}; }
FORERUN_INLINE F32 to_f32(I32 x) { return {_mm512_cvtepi32_ps(x.v)}; }
FORERUN_INLINE I32 round_to_i32(F32 x) {
  __m512 shifted = _mm512_add_ps(x.v, _mm512_set1_ps(12582912.0f));
  return {_mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(0x4B400000))};
}
FORERUN_INLINE F32 from_bits(I32 x) { return {_mm512_castsi512_ps(x.v)}; }

FORERUN_INLINE Bytes load_bytes(const void* p) { return {_mm512_loadu_si512(p)}; }
FORERUN_INLINE float sum(F32 x) {
  __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FORERUN_INLINE float largest(F32 x) {
  __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
FORERUN_INLINE void prefetch(const void* p) { _mm_prefetch((const char*)p, _MM_HINT_T0); }

}  // namespace
}  // namespace forerun::FORERUN_ISA
