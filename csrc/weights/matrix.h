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

// What weights may be rounded to while they are packed.
enum class Rounding : uint8_t { kNone, kQ4, kQ8_0, kBF16 };

// "none", "q4", "q8_0" or "bf16"; throws std::invalid_argument for another name.
Rounding rounding_named(const std::string& name);

class Matrix {
 public:
  // Repacks [num_outputs, num_inputs] stored weights (rows one after the other), in parallel, their values unchanged.
  // `order` (num_outputs entries, or nullptr) names the stored row of each output.
  // Throws std::invalid_argument where `num_inputs` does not fit the format.
  static Matrix pack(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                     const uint32_t* order, Pool& pool);
  // As `pack`, each weight rounded first: kQ4 to 4 bits in groups of 32 where the file has more (requantise.cpp says
  // how), kQ8_0 as GGUF files have it, both with `num_inputs` a multiple of 32; kBF16 to nearest even. The rows of a
  // panel are rounded by the thread that packs it: there is never a second copy of the matrix.
  static Matrix round(Rounding rounding, Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                      const uint32_t* order, Pool& pool);

  // The same in pieces, so that a file need not be read whole: zeros that stand for `stored` weights, then outputs
  // first .. first + count, whole panels unless they are the last; `data` and `order` are those of the piece.
  static Matrix room(Stored stored, size_t num_outputs, size_t num_inputs, Rounding rounding);
  void set_rows(size_t first, size_t count, const uint8_t* data, const uint32_t* order, Pool& pool);

  // Weights that are packed already, `view.data` among them; `owner` keeps them where they are. std::invalid_argument
  // where `num_bytes` are not what the layout and the sizes need.
  static Matrix adopt(std::shared_ptr<const void> owner, const uint8_t* data, size_t num_bytes, Layout layout,
                      size_t num_outputs, size_t num_inputs);

  const MatrixView& view() const { return view_; }
  Stored stored() const { return stored_; }
  size_t num_outputs() const { return view_.num_outputs; }
  size_t num_inputs() const { return view_.num_inputs; }
  size_t num_bytes() const;
  // One output's weights as float32 [num_inputs]: embeddings are looked up so.
  void row(size_t output, float* to) const;

 private:
  std::shared_ptr<Block> block_;       // shared with other matrices, so that small ones lie on huge pages too
  std::shared_ptr<const void> owner_;  // of adopted weights
  MatrixView view_{};
  Stored stored_{};
  Rounding rounding_ = Rounding::kNone;
};

// Whether a layout needs the quantised form of its inputs.
bool needs_quantised(Layout layout);

}  // namespace forerun
