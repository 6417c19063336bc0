// Wide lanes as two 512-bit registers.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

struct F64 {
  __m512d a, b;
};
struct U64 {
  __m512i a, b;
};

FORERUN_INLINE F64 broadcast_f64(double x) { return {_mm512_set1_pd(x), _mm512_set1_pd(x)}; }
FORERUN_INLINE F64 load_f64(const double* p) { return {_mm512_loadu_pd(p), _mm512_loadu_pd(p + 8)}; }
FORERUN_INLINE void store_f64(double* p, F64 x) {
  _mm512_storeu_pd(p, x.a);
  _mm512_storeu_pd(p + 8, x.b);
}
FORERUN_INLINE F64 load_widened(const float* p) {
  return {_mm512_cvtps_pd(_mm256_loadu_ps(p)), _mm512_cvtps_pd(_mm256_loadu_ps(p + 8))};
}
FORERUN_INLINE F64 operator+(F64 x, F64 y) { return {_mm512_add_pd(x.a, y.a), _mm512_add_pd(x.b, y.b)}; }
FORERUN_INLINE F64 operator-(F64 x, F64 y) { return {_mm512_sub_pd(x.a, y.a), _mm512_sub_pd(x.b, y.b)}; }
FORERUN_INLINE F64 operator*(F64 x, F64 y) { return {_mm512_mul_pd(x.a, y.a), _mm512_mul_pd(x.b, y.b)}; }
FORERUN_INLINE F64 fma(F64 x, F64 y, F64 z) { return {_mm512_fmadd_pd(x.a, y.a, z.a), _mm512_fmadd_pd(x.b, y.b, z.b)}; }
FORERUN_INLINE F64 fnma(F64 x, F64 y, F64 z) {
  return {_mm512_fnmadd_pd(x.a, y.a, z.a), _mm512_fnmadd_pd(x.b, y.b, z.b)};
}
// max gives its second operand where one is NaN.
FORERUN_INLINE F64 positive(F64 x) {
  return {_mm512_max_pd(_mm512_setzero_pd(), x.a), _mm512_max_pd(_mm512_setzero_pd(), x.b)};
}
FORERUN_INLINE F64 zero_where_less(F64 x, F64 y, F64 limit) {
  return {_mm512_maskz_mov_pd(_mm512_cmp_pd_mask(y.a, limit.a, _CMP_NLT_UQ), x.a),
          _mm512_maskz_mov_pd(_mm512_cmp_pd_mask(y.b, limit.b, _CMP_NLT_UQ), x.b)};
}
FORERUN_INLINE __m512d power_of_two_512(__m512d x) {
  const __m512i bits = _mm512_slli_epi64(_mm512_castpd_si512(x), 52);
  return _mm512_castsi512_pd(_mm512_add_epi64(bits, _mm512_set1_epi64(0x3FF0000000000000)));
}
FORERUN_INLINE F64 power_of_two(F64 x) { return {power_of_two_512(x.a), power_of_two_512(x.b)}; }
FORERUN_INLINE double sum(F64 x) {
  const __m512d s = _mm512_add_pd(x.a, x.b);
  const __m256d t = _mm256_add_pd(_mm512_castpd512_pd256(s), _mm512_extractf64x4_pd(s, 1));
  const __m128d u = _mm_add_pd(_mm256_castpd256_pd128(t), _mm256_extractf128_pd(t, 1));
  return _mm_cvtsd_f64(_mm_add_sd(u, _mm_unpackhi_pd(u, u)));
}

FORERUN_INLINE U64 broadcast_u64(uint64_t x) {
  return {_mm512_set1_epi64(int64_t(x)), _mm512_set1_epi64(int64_t(x))};
}
FORERUN_INLINE U64 load_u64(const uint64_t* p) { return {_mm512_loadu_si512(p), _mm512_loadu_si512(p + 8)}; }
FORERUN_INLINE U64 operator+(U64 x, U64 y) { return {_mm512_add_epi64(x.a, y.a), _mm512_add_epi64(x.b, y.b)}; }
FORERUN_INLINE U64 operator^(U64 x, U64 y) { return {_mm512_xor_si512(x.a, y.a), _mm512_xor_si512(x.b, y.b)}; }
FORERUN_INLINE U64 shift_right(U64 x, int count) {
  const __m128i c = _mm_cvtsi32_si128(count);
  return {_mm512_srl_epi64(x.a, c), _mm512_srl_epi64(x.b, c)};
}
FORERUN_INLINE U64 multiply(U64 x, uint64_t constant) {
  const __m512i c = _mm512_set1_epi64(int64_t(constant));
  return {_mm512_mullo_epi64(x.a, c), _mm512_mullo_epi64(x.b, c)};
}
FORERUN_INLINE F32 top_24(U64 x) {
  const __m256i low = _mm512_cvtepi64_epi32(_mm512_srli_epi64(x.a, 40));
  const __m256i high = _mm512_cvtepi64_epi32(_mm512_srli_epi64(x.b, 40));
  return {_mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1))};
}

FORERUN_INLINE I32 truncate(F32 x) { return {_mm512_cvttps_epi32(x.v)}; }

FORERUN_INLINE uint32_t at_least(F32 x, F32 limit) {
  return uint32_t(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ));
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
