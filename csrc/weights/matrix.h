// A weight matrix, repacked once at load, and products with it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/memory.h"
#include "core/pool.h"
#include "weights/packed.h"
#include "weights/stored.h"

namespace forerun {

struct Kernels;  // kernels/table.h

class Matrix {
 public:
  // Repacks [num_outputs, num_inputs] stored weights (rows one after the other), in parallel, their values unchanged.
  // `order` (num_outputs entries, or nullptr) names the stored row of each output.
  // Throws std::invalid_argument where `num_inputs` does not fit the format.
  static Matrix pack(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                     const uint32_t* order, Pool& pool);
  // As `pack`, but rounded anew to 4 bits in groups of 32 (requantise.cpp says how) where the file has more: for draft
  // models, whose exactness does not depend on their weights. `num_inputs` must be a multiple of 32.
  static Matrix requantise(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                           const uint32_t* order, Pool& pool);

  // Weights that are packed already, `view.data` among them; `owner` keeps them where they are. std::invalid_argument
  // where `num_bytes` are not what the layout and the sizes need.
  static Matrix adopt(std::shared_ptr<const void> owner, const uint8_t* data, size_t num_bytes, Layout layout,
                      size_t num_outputs, size_t num_inputs);

  const MatrixView& view() const { return view_; }
  size_t num_outputs() const { return view_.num_outputs; }
  size_t num_inputs() const { return view_.num_inputs; }
  size_t num_bytes() const;
  // One output's weights as float32 [num_inputs]: embeddings are looked up so.
  void row(size_t output, float* to) const;

 private:
  std::shared_ptr<const void> owner_;  // a Block, shared with other matrices so that small ones lie on huge pages too
  MatrixView view_{};
};

// A layout's name, as of the format that it is made of; std::invalid_argument for a name that is none.
const char* name_of(Layout layout);
Layout layout_named(const std::string& name);

// Whether a layout needs the quantised form of its inputs.
bool needs_quantised(Layout layout);

}  // namespace forerun
