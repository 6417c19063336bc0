// The kernels of one instruction set, and the choice of an instruction set for this machine.
//
// The files in per_isa/ are compiled once per instruction set and fill one table each time. All tables compute the same
// numbers, bit for bit (lanes/lanes.h), so the choice is a matter of speed alone. Kernels work on the caller's thread;
// loops over pieces and the pool are the callers' business.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

struct MatrixView;   // weights/packed.h
struct RowsView;     // weights/packed.h
struct AttentionJob; // decoder/attention.h

struct Kernels {
  const char* name;  // "avx512vnni", "portable", ...: kernels/isa.h

  // -- matrices: kernels/matmul.h, kernels/quantise.h ---------------------------------------------------------------
  // Quantises rows [row, row + num_rows) of `x` ([.., stride] float32) into `to`, for integer dot products.
  void (*quantise_rows)(const float* x, size_t stride, const RowsView& to, size_t row, size_t num_rows);
  // Panels [first, first + count) with chunk `chunk` of `x`: out[panel - first][row of the chunk][lane], 16 lanes also
  // where the matrix has fewer outputs.
  void (*multiply_panels)(const MatrixView& w, size_t first, size_t count, const RowsView& x, size_t chunk, float* out);

  // -- small layers: kernels/layers.h -------------------------------------------------------------------------------
  // to[i] = x[i] / sqrt(mean(x^2) + epsilon) * weight[i]
  void (*rms_norm)(const float* x, const float* weight, float epsilon, size_t size, float* to);
  // Rotates pairs (x[i], x[i + half]) (halves apart) by cos[i], sin[i], i < half.
  void (*rotate)(float* x, const float* cos, const float* sin, size_t half);
  // to[i] = silu(gate[i]) * up[i], or with GELU by its formula with tanh
  void (*silu_multiply)(const float* gate, const float* up, size_t size, float* to);
  void (*gelu_tanh_multiply)(const float* gate, const float* up, size_t size, float* to);
  // to[i] += scale * x[i]
  void (*add_scaled)(const float* x, float scale, size_t size, float* to);
  // x[i] *= scale, then, where `cap` is not 0, x[i] = cap * tanh(x[i] / cap)
  void (*scale_and_cap)(float* x, size_t size, float scale, float cap);
  // Numbers in steps of 16 bits; returns the step. `longest` bounds the length of the vector in steps, 0: no bound.
  float (*to_steps)(const float* x, size_t size, float longest, int16_t* to);

  // -- attention: kernels/attend.h ----------------------------------------------------------------------------------
  void (*attend)(const AttentionJob& job);
  void (*merge_attention)(const AttentionJob& job);  // finishes a job whose chunks `attend` computed apart
};

// The table in use: the best this machine can run, or the one FORERUN_ISA names. Throws std::runtime_error where it
// names one that is unknown or that this machine cannot run.
const Kernels& kernels();

// A table by name, nullptr where it is unknown, was not compiled, or cannot run here. For tests.
const Kernels* kernels_named(const char* name);

}  // namespace forerun
