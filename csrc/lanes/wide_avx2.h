// Wide lanes as four 256-bit registers.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

struct F64 {
  __m256d a, b, c, d;
};
struct U64 {
  __m256i a, b, c, d;
};

#define FORERUN_FOUR(f) {f(a), f(b), f(c), f(d)}

FORERUN_INLINE F64 broadcast_f64(double x) {
  const __m256d v = _mm256_set1_pd(x);
  return {v, v, v, v};
}
FORERUN_INLINE F64 load_f64(const double* p) {
  return {_mm256_loadu_pd(p), _mm256_loadu_pd(p + 4), _mm256_loadu_pd(p + 8), _mm256_loadu_pd(p + 12)};
}
FORERUN_INLINE void store_f64(double* p, F64 x) {
  _mm256_storeu_pd(p, x.a);
  _mm256_storeu_pd(p + 4, x.b);
  _mm256_storeu_pd(p + 8, x.c);
  _mm256_storeu_pd(p + 12, x.d);
}
FORERUN_INLINE F64 load_widened(const float* p) {
  return {_mm256_cvtps_pd(_mm_loadu_ps(p)), _mm256_cvtps_pd(_mm_loadu_ps(p + 4)), _mm256_cvtps_pd(_mm_loadu_ps(p + 8)),
          _mm256_cvtps_pd(_mm_loadu_ps(p + 12))};
}

#define FORERUN_PART(p) _mm256_add_pd(x.p, y.p)
FORERUN_INLINE F64 operator+(F64 x, F64 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_sub_pd(x.p, y.p)
FORERUN_INLINE F64 operator-(F64 x, F64 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_mul_pd(x.p, y.p)
FORERUN_INLINE F64 operator*(F64 x, F64 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_fmadd_pd(x.p, y.p, z.p)
FORERUN_INLINE F64 fma(F64 x, F64 y, F64 z) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_fnmadd_pd(x.p, y.p, z.p)
FORERUN_INLINE F64 fnma(F64 x, F64 y, F64 z) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
// max gives its second operand where one is NaN.
#define FORERUN_PART(p) _mm256_max_pd(_mm256_setzero_pd(), x.p)
FORERUN_INLINE F64 positive(F64 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_and_pd(x.p, _mm256_cmp_pd(y.p, limit.p, _CMP_NLT_UQ))
FORERUN_INLINE F64 zero_where_less(F64 x, F64 y, F64 limit) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE __m256d power_of_two_256(__m256d x) {
  const __m256i bits = _mm256_slli_epi64(_mm256_castpd_si256(x), 52);
  return _mm256_castsi256_pd(_mm256_add_epi64(bits, _mm256_set1_epi64x(0x3FF0000000000000)));
}
#define FORERUN_PART(p) power_of_two_256(x.p)
FORERUN_INLINE F64 power_of_two(F64 x) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
FORERUN_INLINE double sum(F64 x) {
  const __m256d s = _mm256_add_pd(_mm256_add_pd(x.a, x.c), _mm256_add_pd(x.b, x.d));
  const __m128d t = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
  return _mm_cvtsd_f64(_mm_add_sd(t, _mm_unpackhi_pd(t, t)));
}

FORERUN_INLINE U64 broadcast_u64(uint64_t x) {
  const __m256i v = _mm256_set1_epi64x(int64_t(x));
  return {v, v, v, v};
}
FORERUN_INLINE U64 load_u64(const uint64_t* p) {
  const __m256i* q = (const __m256i*)p;
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1), _mm256_loadu_si256(q + 2), _mm256_loadu_si256(q + 3)};
}
#define FORERUN_PART(p) _mm256_add_epi64(x.p, y.p)
FORERUN_INLINE U64 operator+(U64 x, U64 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_xor_si256(x.p, y.p)
FORERUN_INLINE U64 operator^(U64 x, U64 y) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
#define FORERUN_PART(p) _mm256_srl_epi64(x.p, _mm_cvtsi32_si128(count))
FORERUN_INLINE U64 shift_right(U64 x, int count) { return FORERUN_FOUR(FORERUN_PART); }
#undef FORERUN_PART
// There is no 64-bit product: low x low, plus the two mixed products moved up by 32 bits.
FORERUN_INLINE __m256i multiply_256(__m256i x, __m256i low, __m256i high) {
  const __m256i mixed = _mm256_add_epi64(_mm256_mul_epu32(_mm256_srli_epi64(x, 32), low), _mm256_mul_epu32(x, high));
  return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(mixed, 32));
}
FORERUN_INLINE U64 multiply(U64 x, uint64_t constant) {
  const __m256i low = _mm256_set1_epi64x(int64_t(constant)), high = _mm256_set1_epi64x(int64_t(constant >> 32));
#define FORERUN_PART(p) multiply_256(x.p, low, high)
  return FORERUN_FOUR(FORERUN_PART);
#undef FORERUN_PART
}
// The low halves of eight 64-bit lanes, in order.
FORERUN_INLINE __m256 narrow_256(__m256i x, __m256i y) {
  const __m256 both = _mm256_shuffle_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y), 0x88);
  return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(_mm256_castps_si256(both), 0xD8));
}
FORERUN_INLINE F32 top_24(U64 x) {
  return {narrow_256(_mm256_srli_epi64(x.a, 40), _mm256_srli_epi64(x.b, 40)),
          narrow_256(_mm256_srli_epi64(x.c, 40), _mm256_srli_epi64(x.d, 40))};
}

FORERUN_INLINE I32 truncate(F32 x) { return {_mm256_cvttps_epi32(x.a), _mm256_cvttps_epi32(x.b)}; }

FORERUN_INLINE uint32_t at_least(F32 x, F32 limit) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_GE_OQ));
  const int high = _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_GE_OQ));
  return uint32_t(low) | uint32_t(high) << 8;
}

#undef FORERUN_FOUR

}  // namespace
}  // namespace forerun::FORERUN_ISA
