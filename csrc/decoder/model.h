// A decoder's weights, by name.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "decoder/decoder.h"

namespace forerun {

struct Layer {
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> attention_norm, ffn_norm;            // of what they are fed; empty: none, here and below
  std::vector<float> attention_post_norm, ffn_post_norm;  // of what they give
  std::vector<float> q_bias, k_bias, v_bias, o_bias, gate_bias, up_bias, down_bias;
  std::vector<float> q_norm, k_norm;  // [head_size], of each head, or of all heads together
};

struct Model {
  explicit Model(const Description& description);

  Matrix& matrix(const std::string& name);              // std::invalid_argument for a name that is none
  std::vector<float>& vector(const std::string& name);  // likewise
  std::vector<std::pair<std::string, Matrix>> all_matrices() const;  // by the names that `matrix` takes
  void check() const;                                   // std::invalid_argument names what is missing or misshapen
  const Matrix& output_head() const { return head.num_outputs() ? head : embedding; }
  int64_t num_bytes() const;  // of what one row of a pass reads

  Description description;
  Matrix embedding, head;
  std::vector<float> norm;
  std::vector<Layer> layers;
};

}  // namespace forerun
