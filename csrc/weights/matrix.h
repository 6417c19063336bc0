// A weight matrix, repacked once at load, and products with it.
#pragma once

#include <string>
#include <vector>

#include "core/memory.h"
#include "core/pool.h"
#include "weights/packed.h"

namespace forerun {

// What a GGUF file stores; names as GGML has them ("Q4_K").
enum class Stored : uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ8_0, kQ4_K, kQ6_K };

// Throws std::invalid_argument for a name that is none.
Stored stored_named(const std::string& name);
size_t stored_row_bytes(Stored stored, size_t num_inputs);
// One row of stored weights as float32.
void decode_row(Stored stored, const uint8_t* row, size_t num_inputs, float* to);

class Matrix {
 public:
  // Repacks [num_outputs, num_inputs] stored weights (rows one after the other), in parallel, weights' values unchanged.
  // `order` (num_outputs entries, or nullptr) names the stored row of each output.
  static Matrix pack(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                     const uint32_t* order, Pool& pool);
  // As `pack`, but rounded anew to 4 bits in groups of 32 (kQ4_0 or kQ4_1, whichever loses less is a compile-time
  // choice with its reason in the source): for draft models, whose exactness does not depend on their weights.
  static Matrix requantise(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                           const uint32_t* order, Pool& pool);

  const MatrixView& view() const { return view_; }
  size_t num_outputs() const { return view_.num_outputs; }
  size_t num_inputs() const { return view_.num_inputs; }
  size_t num_bytes() const { return block_.size(); }
  // One output's weights as float32 [num_inputs]: embeddings are looked up so.
  void row(size_t output, float* to) const;

 private:
  Block block_;
  MatrixView view_{};
};

// Activations of up to `max_rows` rows, in the forms the layouts need; memory is kept from pass to pass.
class Activations {
 public:
  Activations(size_t max_rows, size_t max_inputs);
  // Takes [num_rows, num_inputs] values with `stride`; quantises them (in parallel where that pays) if `quantised`.
  void set(const float* values, size_t stride, size_t num_rows, size_t num_inputs, bool quantised, Pool& pool);
  const RowsView& view() const { return view_; }

 private:
  Block block_;
  RowsView view_{};
};

// What becomes of a product.
enum class Epilogue : uint8_t {
  kStore,         // out = product (+ bias)
  kAdd,           // out += product (+ bias)
  kSiluMultiply,  // out = silu(product with the first matrix) * product with the second: exactly two matrices
};

// One matrix of a product: out[m * stride + output].
struct Product {
  const Matrix* matrix;
  const float* bias;  // [num_outputs] or nullptr
  float* out;
  size_t stride;
  size_t num_outputs = 0;  // only the matrix's first so many outputs; 0: all
};

// Multiplies all rows of `x` with each matrix, in one parallel loop. Results do not depend on the number of rows, their
// order, the other matrices or the threads.
void multiply(const std::vector<Product>& products, const Activations& x, Epilogue epilogue, Pool& pool);

// Whether a layout needs the quantised form of its inputs.
bool needs_quantised(Layout layout);

}  // namespace forerun
