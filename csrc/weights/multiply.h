// Products of rows of activations with repacked matrices.
#pragma once

#include <vector>

#include "weights/matrix.h"

namespace forerun {

// The kernels in use (kernels/table.h); tests name others.
const Kernels& kernels();

// Activations of up to `max_rows` rows, in the forms the layouts need; memory is kept from pass to pass.
class Activations {
 public:
  Activations(size_t max_rows, size_t max_inputs);
  // Takes [num_rows, num_inputs] values with `stride`, which must stay where they are until the products are done;
  // quantises them (in parallel where that pays) if `quantised`, for products with the same kernels.
  void set(const float* values, size_t stride, size_t num_rows, size_t num_inputs, bool quantised, Pool& pool,
           const Kernels& kernels = forerun::kernels());
  const RowsView& view() const { return view_; }

 private:
  Block block_;
  size_t max_rows_;
  RowsView view_{};
};

// What becomes of a product.
enum class Epilogue : uint8_t {
  kStore,         // out = product (+ bias)
  kAdd,           // out += product (+ bias)
  kSiluMultiply,  // out = silu(product with the first matrix) * product with the second: exactly two matrices
  kGeluTanhMultiply,  // likewise, with GELU by its formula with tanh
};

// One matrix of a product: out[m * stride + output]. The second of a pair has no `out` of its own.
struct Product {
  const Matrix* matrix;
  const float* bias;  // [num_outputs] or nullptr
  float* out;
  size_t stride;
  size_t num_outputs = 0;  // only the matrix's first so many outputs (a head cut short); 0: all
};

// Multiplies all rows of `x` with each matrix, in one parallel loop. Results do not depend on the number of rows, their
// order, the other matrices or the threads.
void multiply(const std::vector<Product>& products, const Activations& x, Epilogue epilogue, Pool& pool,
              const Kernels& kernels = forerun::kernels());

}  // namespace forerun
