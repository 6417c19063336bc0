// One pass of a decoder over some tokens whose pages are there.
#pragma once

#include <vector>

#include "decoder/model.h"
#include "decoder/plan.h"
#include "decoder/rotary.h"
#include "decoder/spans.h"
#include "weights/multiply.h"

namespace forerun {

constexpr size_t kPassRows = 256;  // tokens of one pass; more are cut into several, which changes no numbers

class Workspace {
 public:
  explicit Workspace(const Model& model);

  // Feeds tokens [first, first + count) of `fed`, count <= kPassRows, and writes the logits of those that are wanted.
  // Returns where the next logits go.
  float* run(const FedSpans& fed, size_t first, size_t count, const CacheShape& shape,
             const std::vector<Rotary>& rotaries, float* out, Pool& pool);

 private:
  struct Rows {  // float32 [kPassRows, stride]
    explicit Rows(size_t width) : stride((width + 15) / 16 * 16), block(kPassRows * stride * sizeof(float)) {}
    float* at(size_t row) const { return block.as<float>() + row * stride; }
    size_t stride;
    Block block;
  };

  void embed(Pool& pool);
  void project_keys(const Layer& layer, Pool& pool);
  void place(const Layer& layer, int64_t index, const FedSpans& fed, const CacheShape& shape, const Rotary* rotary,
             Pool& pool);
  void feed_forward(const Layer& layer, Pool& pool);
  void plan(size_t index, const FedSpans& fed, Pool& pool);
  const Rows& normalise(const std::vector<float>& weight, Pool& pool);
  void add_product(const Rows& rows, const Matrix& matrix, const std::vector<float>& bias,
                   const std::vector<float>& post_norm, Pool& pool);
  void scale_logits(float* logits, Pool& pool);
  void multiply_rows(const Rows& rows, size_t num_inputs, const std::vector<Product>& products, Epilogue epilogue,
                     Pool& pool);
  void drop_unwanted();

  const Model& model_;
  std::vector<const FedToken*> tokens_;  // of the pass, row by row
  std::vector<int64_t> windows_;      // that layers have, each once
  std::vector<size_t> window_of_;     // [layers], in windows_
  std::vector<AttentionPlan> plans_;  // one for each window
  Block partials_;                    // of the plan that runs
  Activations activations_;
  Rows hidden_, inner_, projected_, expanded_;
  Rows given_;        // by attention or feed-forward, where more is to be done than to add it to the stream
  Rows queries_;      // int16 [tokens, heads, head_size]
  Rows query_steps_;  // [tokens, heads]
};

}  // namespace forerun
