// Products with weights that are floats as stored: one panel with any number of rows.
//
// Every (row, output) has two chains of fused multiply-adds, over even and over odd inputs, and their sum is the
// result: one chain would wait for itself.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

struct LoadFloat32 {
  static constexpr size_t kBytes = 64;
  FORERUN_INLINE_MEMBER static F32 load_weights(const uint8_t* p) { return load((const float*)p); }
};
struct LoadFloat16 {
  static constexpr size_t kBytes = 32;
  FORERUN_INLINE_MEMBER static F32 load_weights(const uint8_t* p) { return load_half((const uint16_t*)p); }
};
struct LoadBFloat16 {
  static constexpr size_t kBytes = 32;
  FORERUN_INLINE_MEMBER static F32 load_weights(const uint8_t* p) { return load_bf16((const uint16_t*)p); }
};

template <class Load, int N>
void multiply_float_rows(const uint8_t* panel, size_t num_inputs, const float* x, size_t stride, float* out,
                         size_t ahead) {
  F32 even[N], odd[N];
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) even[n] = odd[n] = zero();
  size_t k = 0;
  for (; k + 2 <= num_inputs; k += 2) {
    prefetch(panel + k * Load::kBytes + ahead);
    if (Load::kBytes == 64) prefetch(panel + k * Load::kBytes + ahead + 64);
    const F32 first = Load::load_weights(panel + k * Load::kBytes);
    const F32 second = Load::load_weights(panel + (k + 1) * Load::kBytes);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) {
      even[n] = fma(broadcast(x[n * stride + k]), first, even[n]);
      odd[n] = fma(broadcast(x[n * stride + k + 1]), second, odd[n]);
    }
  }
  if (k < num_inputs) {
    const F32 last = Load::load_weights(panel + k * Load::kBytes);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) even[n] = fma(broadcast(x[n * stride + k]), last, even[n]);
  }
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) store(out + 16 * n, even[n] + odd[n]);
}

template <class Load, int N>
void multiply_float_chunk(const uint8_t* panel, size_t num_inputs, const float* x, size_t stride, size_t num_rows,
                          float* out, size_t ahead) {
  for (; num_rows >= N; num_rows -= N, x += N * stride, out += 16 * N)
    multiply_float_rows<Load, N>(panel, num_inputs, x, stride, out, ahead);
  if constexpr (N > 1) {
    if (num_rows > 0) multiply_float_chunk<Load, N / 2>(panel, num_inputs, x, stride, num_rows, out, ahead);
  }
}

template <class Load>
void multiply_float_panels(const MatrixView& w, size_t first, size_t count, const RowsView& x, size_t row,
                           size_t num_rows, float* out, size_t ahead) {
  for (size_t i = 0; i < count; ++i)
    multiply_float_chunk<Load, kFloatRowsAtOnce>(w.data + (first + i) * w.panel_bytes, w.num_inputs,
                                                 x.values + row * x.stride, x.stride, num_rows,
                                                 out + i * num_rows * kPanel, ahead);
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
