// Functions built from lanes: the same bits wherever the lanes are the same.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// x = n ln 2 + r, |r| <= ln 2 / 2, as Cody and Waite reduce it: e^x is power = 2^n times e^r, and `series` is
// (e^r - 1 - r) / r^2 by Taylor, so that e^r is known to degree 7 (remainder below 2^-26).
struct Reduced {
  F32 r, series, power;
};
FORERUN_INLINE Reduced reduce(F32 x) {
  const I32 n = round_to_i32(x * broadcast(1.44269504f));
  const F32 k = to_f32(n);
  F32 r = fnma(k, broadcast(0.693145751953125f), x);
  r = fnma(k, broadcast(1.42860677e-6f), r);
  F32 p = broadcast(1.98412698e-4f);
  p = fma(p, r, broadcast(1.38888889e-3f));
  p = fma(p, r, broadcast(8.33333333e-3f));
  p = fma(p, r, broadcast(4.16666667e-2f));
  p = fma(p, r, broadcast(1.66666667e-1f));
  p = fma(p, r, broadcast(0.5f));
  return {r, p, from_bits(shift_left(n + broadcast_i32(127), 23))};
}

// e^x for x <= 88, to about 1 ulp; below -87.3 the result is 0 (never a subnormal). NaN gives an unspecified value.
FORERUN_INLINE F32 exp(F32 x) {
  const F32 lowest = broadcast(-87.33654f), one = broadcast(1.0f);
  const Reduced e = reduce(max(min(x, broadcast(88.0f)), lowest));
  return zero_where_below(fma(fma(e.series, e.r, one), e.r, one) * e.power, x, lowest);
}

// x / (1 + e^-x)
FORERUN_INLINE F32 silu(F32 x) { return x / (broadcast(1.0f) + exp(zero() - x)); }

// x times the logistic function of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3): GELU by its formula with tanh.
// To 2e-7 of the larger of |x| and 1, and down to -9 to 1e-5 of itself. NaN and infinities stay broken.
FORERUN_INLINE F32 gelu_tanh(F32 x) {
  const F32 minus_2u = zero() - x * fma(x * x, broadcast(0.0713548163f), broadcast(1.59576912f));
  return x / (broadcast(1.0f) + exp(minus_2u));
}

// tanh(x) for every x, to 3 ulp (2.5 is the most that was seen), never beyond 1. NaN stays NaN.
// e / (e + 2) with e = e^2x - 1 = 2^n p + (2^n - 1), p = e^r - 1: near 0, n is 0 and p keeps the digits that 1 would
// swallow. From 10 on, tanh is 1.
FORERUN_INLINE F32 tanh(F32 x) {
  const F32 least = broadcast(-10.0f), most = broadcast(10.0f);
  const F32 clamped = max(least, min(most, x));  // the second operand where one is NaN
  const Reduced of = reduce(clamped + clamped);
  const F32 p = fma(of.series * of.r, of.r, of.r);
  const F32 e = fma(of.power, p, of.power - broadcast(1.0f));
  return e / (e + broadcast(2.0f));
}

// x, squeezed between -cap and cap; NaN stays NaN.
FORERUN_INLINE F32 soft_cap(F32 x, F32 cap) { return cap * tanh(x / cap); }

}  // namespace
}  // namespace forerun::FORERUN_ISA
