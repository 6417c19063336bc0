// Sixteen lanes of double and of 64-bit integers, for sums over a vocabulary: what lanes.h is for float.
//
// The same rules: every operation is exact or correctly rounded, lanes meet in one fixed order, so the bits are those
// of every other instruction set.
//
// Types       F64 (16 double), U64 (16 uint64)
// Doubles     broadcast_f64, load_f64, store_f64, load_widened (from float); + - *, fma(a, b, c) = a * b + c,
//             fnma(a, b, c) = c - a * b
// Choice      positive(x): x, or 0 where x < 0; zero_where_less(x, y, limit): 0 where y < limit. Both let NaN through.
// Exponents   power_of_two(x): 2^k for x = k + kWhole, k from -1022 to 1023
// Integers    broadcast_u64, +, shift_right, exclusive or, multiply(U64, constant), top_24(U64) as whole floats
//             truncate(F32) towards zero, within the range of int32
// Across      sum(F64): halves added to halves. at_least(F32, F32): lane i's comparison in bit i; false for NaN
#pragma once

#include "lanes/lanes.h"

namespace forerun::FORERUN_ISA {
namespace {

// Adding this leaves the nearest integer (ties to even) in the low bits of a double of magnitude below 2^51.
constexpr double kWhole = 6755399441055744.0;  // 1.5 * 2^52

}  // namespace
}  // namespace forerun::FORERUN_ISA

#if defined(FORERUN_LANES_AVX512)
#include "lanes/wide_avx512.h"
#elif defined(FORERUN_LANES_AVX2)
#include "lanes/wide_avx2.h"
#elif defined(FORERUN_LANES_NEON)
#include "lanes/wide_neon.h"
#else
#include "lanes/wide_portable.h"
#endif

namespace forerun::FORERUN_ISA {
namespace {

// e^x for x from -708 to 0, to 2e-14 (relative) and exactly 1 at 0. NaN stays NaN; less than -708 gives anything.
// x = k ln 2 + r, |r| <= ln 2 / 2; e^r = 1 + r + r^2 g(r), g the minimax polynomial of degree 7; then k into the
// exponent. ln 2 is one double, which is wrong by 2.3e-17 k.
FORERUN_INLINE F64 exp(F64 x) {
  const F64 shifted = fma(x, broadcast_f64(1.4426950408889634), broadcast_f64(kWhole));
  const F64 r = fnma(shifted - broadcast_f64(kWhole), broadcast_f64(0.6931471805599453), x);
  F64 p = broadcast_f64(2.7493074801548005e-06);
  p = fma(p, r, broadcast_f64(2.4880794230891814e-05));
  p = fma(p, r, broadcast_f64(0.00019841538988887874));
  p = fma(p, r, broadcast_f64(0.0013888811175282662));
  p = fma(p, r, broadcast_f64(0.00833333309522945));
  p = fma(p, r, broadcast_f64(0.04166666696206832));
  p = fma(p, r, broadcast_f64(0.16666666667264735));
  p = fma(p, r, broadcast_f64(0.49999999999664574));
  p = fma(p, r, broadcast_f64(1.0));
  p = fma(p, r, broadcast_f64(1.0));
  return p * power_of_two(shifted);
}

// From 2^x to 1.062 times that (8e-6 below it by rounding), for x from -126 to 127: the exponent's bits run on into the
// fraction, which makes straight lines between powers of two.
FORERUN_INLINE F32 power_above(F32 x) {
  return from_bits(truncate(fma(x, broadcast(8388608.0f), broadcast(1065353216.0f))));
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
