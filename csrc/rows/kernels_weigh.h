// Weights of a piece of a row, and what is left of them after another row's are taken away.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// The last n < kLanes logits of a row; what is not there weighs nothing.
FORERUN_INLINE void pad(const float* x, size_t n, float* padded) {
  for (size_t i = 0; i < kLanes; ++i) padded[i] = i < n ? x[i] : -__builtin_inff();
}
FORERUN_INLINE F32 load_tail(const float* x, size_t n) {
  float padded[kLanes];
  pad(x, n, padded);
  return load(padded);
}

// Sixteen weights. Nearly always no logit is far enough below the largest to weigh nothing, which one comparison of
// floats tells: then nothing has to be chosen lane by lane.
struct Weigher {
  F64 top, scale, lowest;
  F32 near;

  FORERUN_INLINE Weigher made(double largest, double rate) {
    double far = largest + (kLeastExponent + 1.0) / rate;
    far += 1e-6 * __builtin_fabs(far);  // more than the float below is wrong by
    const float near = far > -3e38 ? float(far) : -3e38f;
    return {broadcast_f64(largest), broadcast_f64(rate), broadcast_f64(kLeastExponent), broadcast(near)};
  }
  FORERUN_INLINE F64 weights(const Weigher& self, const float* x) {
    const F64 exponents = (load_widened(x) - self.top) * self.scale;
    if (at_least(load(x), self.near) == 0xFFFF) return exp(exponents);
    return zero_where_less(exp(exponents), exponents, self.lowest);
  }
};

FORERUN_INLINE F64 weights_of_tail(const Weigher& weigher, const float* x, size_t n) {
  float padded[kLanes];
  pad(x, n, padded);
  return Weigher::weights(weigher, padded);
}

double weigh(const float* x, size_t n, double largest, double rate, double* to) {
  const Weigher weigher = Weigher::made(largest, rate);
  F64 total = broadcast_f64(0.0);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F64 weights = Weigher::weights(weigher, x + i);
    store_f64(to + i, weights);
    total = total + weights;
  }
  if (i < n) {
    const F64 weights = weights_of_tail(weigher, x + i, n - i);
    store_f64(to + i, weights);
    total = total + weights;
  }
  return sum(total);
}

double survey(const float* x, size_t n, double rate, float* largest_of) {
  const float nothing = -__builtin_inff();
  F32 highest = broadcast(nothing);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) highest = max(highest, load(x + i));
  if (i < n) highest = max(highest, load_tail(x + i, n - i));
  const float top = *largest_of = largest(highest);
  if (top == nothing) return 0.0;
  const Weigher weigher = Weigher::made(double(top), rate);
  F64 total = broadcast_f64(0.0);
  for (i = 0; i + kLanes <= n; i += kLanes) total = total + Weigher::weights(weigher, x + i);
  if (i < n) total = total + weights_of_tail(weigher, x + i, n - i);
  return sum(total);
}

// Products are rounded before they are subtracted, not fused: equal rows then leave exactly nothing.
double leave(const double* p, double a, const double* q, double b, size_t n, double* to) {
  const F64 p_scale = broadcast_f64(a), q_scale = broadcast_f64(b);
  F64 total = broadcast_f64(0.0);
  for (size_t i = 0; i < n; i += kLanes) {
    const F64 left = positive(load_f64(p + i) * p_scale - load_f64(q + i) * q_scale);
    store_f64(to + i, left);
    total = total + left;
  }
  return sum(total);
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
