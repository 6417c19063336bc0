// Norms, rotary positions, activations and sums: small beside the products, but between all of them.
#pragma once

#include "decoder/attention.h"
#include "lanes/pairs.h"

namespace forerun::FORERUN_ISA {
namespace {

// Lane i adds the squares of x[i], x[i + 16], ...; the lanes are then added in a fixed tree.
void rms_norm(const float* x, const float* weight, float epsilon, size_t size, float* to) {
  F32 squares = zero();
  size_t i = 0;
  for (; i + 16 <= size; i += 16) {
    F32 v = load(x + i);
    squares = fma(v, v, squares);
  }
  if (i < size) {
    alignas(64) float rest[16] = {};
    for (size_t j = i; j < size; ++j) rest[j - i] = x[j];
    F32 v = load(rest);
    squares = fma(v, v, squares);
  }
  const float mean = sum(squares) / float(size);
  const float scale = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (i = 0; i + 16 <= size; i += 16) store(to + i, load(x + i) * broadcast(scale) * load(weight + i));
  for (; i < size; ++i) to[i] = x[i] * scale * weight[i];
}

void rotate(float* x, const float* cos, const float* sin, size_t half) {
  size_t i = 0;
  for (; i + 16 <= half; i += 16) {
    F32 a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
    store(x + i, fnma(b, s, a * c));
    store(x + half + i, fma(a, s, b * c));
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = __builtin_fmaf(-b, sin[i], a * cos[i]);
    x[half + i] = __builtin_fmaf(a, sin[i], b * cos[i]);
  }
}

// to = f(gate) * up
template <class F>
FORERUN_INLINE void activate(const float* gate, const float* up, size_t size, float* to, F f) {
  size_t i = 0;
  for (; i + 16 <= size; i += 16) store(to + i, f(load(gate + i)) * load(up + i));
  if (i < size) {
    alignas(64) float g[16] = {}, u[16] = {};
    for (size_t j = i; j < size; ++j) g[j - i] = gate[j], u[j - i] = up[j];
    store(g, f(load(g)) * load(u));
    for (size_t j = i; j < size; ++j) to[j] = g[j - i];
  }
}

void silu_multiply(const float* gate, const float* up, size_t size, float* to) {
  activate(gate, up, size, to, [](F32 x) { return silu(x); });
}

void gelu_tanh_multiply(const float* gate, const float* up, size_t size, float* to) {
  activate(gate, up, size, to, [](F32 x) { return gelu_tanh(x); });
}

void add_scaled(const float* x, float scale, size_t size, float* to) {
  size_t i = 0;
  for (; i + 16 <= size; i += 16) store(to + i, fma(load(x + i), broadcast(scale), load(to + i)));
  for (; i < size; ++i) to[i] = __builtin_fmaf(x[i], scale, to[i]);
}

void scale_and_cap(float* x, size_t size, float scale, float cap) {
  const auto change = [=](F32 v) {
    const F32 scaled = v * broadcast(scale);
    return cap > 0.0f ? soft_cap(scaled, broadcast(cap)) : scaled;
  };
  size_t i = 0;
  for (; i + 16 <= size; i += 16) store(x + i, change(load(x + i)));
  if (i < size) {
    alignas(64) float rest[16] = {};
    for (size_t j = i; j < size; ++j) rest[j - i] = x[j];
    store(rest, change(load(rest)));
    for (size_t j = i; j < size; ++j) x[j] = rest[j - i];
  }
}

// Numbers in steps, rounded to 16 bits; returns the step. `longest` bounds the vector's length in steps, 0: only its
// largest number counts. A NaN or an infinity makes the step NaN: it stays visible.
float to_steps(const float* x, size_t size, float longest, int16_t* to) {
  F32 top = zero(), squares = zero(), poison = zero();
  alignas(64) float rest[16] = {};
  const size_t whole = size / 16 * 16;
  for (size_t i = whole; i < size; ++i) rest[i - whole] = x[i];
  for (size_t i = 0; i < size; i += 16) {
    const F32 v = load(i < whole ? x + i : rest);
    top = max(abs(v), top);
    squares = fma(v, v, squares);
    poison = fma(v, zero(), poison);
  }
  float step = largest(top) * (1.0f / kMost);
  if (longest > 0.0f) {
    const float by_length = __builtin_sqrtf(sum(squares)) / longest;
    step = step > by_length ? step : by_length;
  }
  step += sum(poison);
  const F32 scale = broadcast(step > 1e-30f ? 1.0f / step : 0.0f);
  for (size_t i = 0; i < whole; i += 16) store_i16(to + i, round_to_i32(load(x + i) * scale));
  if (whole < size) {
    alignas(64) int16_t steps[16];
    store_i16(steps, round_to_i32(load(rest) * scale));
    for (size_t i = whole; i < size; ++i) to[i] = steps[i - whole];
  }
  return step;
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
