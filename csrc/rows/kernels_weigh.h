// Weights of a piece of a row, and what is left of them after another row's are taken away.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// The last n < kLanes logits of a row; what is not there weighs nothing.
FORERUN_INLINE F32 load_tail(const float* x, size_t n) {
  float padded[kLanes];
  for (size_t i = 0; i < kLanes; ++i) padded[i] = i < n ? x[i] : -__builtin_inff();
  return load(padded);
}

double weigh(const float* x, size_t n, double largest, double rate, double* to) {
  const F64 top = broadcast_f64(largest), scale = broadcast_f64(rate), lowest = broadcast_f64(kLeastExponent);
  F64 total = broadcast_f64(0.0);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const F64 weights = exp((widen(load(x + i)) - top) * scale, lowest);
    store_f64(to + i, weights);
    total = total + weights;
  }
  if (i < n) {
    const F64 weights = exp((widen(load_tail(x + i, n - i)) - top) * scale, lowest);
    store_f64(to + i, weights);
    total = total + weights;
  }
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
