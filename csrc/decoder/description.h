// What a decoder is, as data: everything in which families differ, but for their weights.
#pragma once

#include <cstdint>
#include <vector>

namespace forerun {

// Rotary positions: the first 2 * frequencies.size() coordinates of a head are rotated, halves apart; the others stay.
struct RotaryTable {
  std::vector<double> frequencies;  // radians a position, after scaling; at most head_size / 2
  float scale = 1.0f;               // what rotated coordinates are multiplied by (YaRN's mscale)
};

enum class Activation : uint8_t { kSilu, kGeluTanh };  // of the gate; the latter by GELU's formula with tanh

struct Description {
  int64_t num_layers = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_size = 0;
  int64_t num_embeddings = 0;   // ids that can be fed
  int64_t vocabulary_size = 0;  // rows of the output head (fewer where a draft's head was cut)
  int64_t context_length = 0;
  float epsilon = 1e-6f;            // of every RMS norm
  float attention_scale = 0.0f;     // what q . k is multiplied by: 1 / sqrt(head_size), in most
  float attention_softcap = 0.0f;   // c: scores become c * tanh(score / c), before they are masked; 0: they stay
  float embedding_scale = 1.0f;     // what embeddings are multiplied by
  float residual_scale = 1.0f;      // what attention and feed-forward are multiplied by before they are added
  float logit_scale = 1.0f;         // what logits are multiplied by
  float logit_softcap = 0.0f;       // as attention's, of logits that were multiplied by their scale
  Activation activation = Activation::kSilu;
  std::vector<RotaryTable> rotaries;
  std::vector<int64_t> layer_rotaries;  // [num_layers] indices of `rotaries`; -1: the layer knows no positions
  std::vector<int64_t> layer_windows;   // [num_layers] W: a token sees itself and the W - 1 before it; 0: all of them
};

// Throws std::invalid_argument, which names what is wrong.
void check_description(const Description& description);

}  // namespace forerun
