// A decoder-only transformer of the llama kind, run over ragged spans of many sequences.
//
// What differs from family to family is data (Description), never code paths named after a family. A row's numbers do
// not depend, bit for bit, on how many rows, sequences or threads share the pass, or on how its prompt was cut into
// passes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mapping.h"
#include "core/pool.h"
#include "decoder/description.h"
#include "weights/matrix.h"

namespace forerun {

// One span: `num_tokens` new tokens of a sequence, cached length `start`; logits for the last `num_rows`. `parents` is
// nullptr for a chain; for a tree, parents[i] < i is the index in the span of token i's parent, -1: the committed text.
struct SpanOf {
  int64_t sequence_id;
  int64_t start;
  const int32_t* tokens;
  int64_t num_tokens;
  int64_t num_rows;
  const int32_t* parents;  // nullptr or [num_tokens]
};

class Decoder {
 public:
  explicit Decoder(const Description& description);
  ~Decoder();

  // Weights by name: "embedding", "head", "layers.N.{q,k,v,o,gate,up,down}". A missing "head" means tied embeddings.
  void set_matrix(const std::string& name, Matrix matrix);
  // Vectors by name: "norm" and, where the model has them, "layers.N.{attention,ffn}_norm" (of what attention and
  // feed-forward are fed; without one, the stream itself), "layers.N.{attention,ffn}_post_norm" (of what they give),
  // "layers.N.{q,k,v,o,gate,up,down}_bias" and "layers.N.{q,k}_norm" ([head_size]: of each head; [heads * head_size]:
  // of all together).
  void set_vector(const std::string& name, std::vector<float> values);
  // Instead of `set_matrix`: packed weights at `offset` of a mapped file, which the decoder then keeps mapped.
  void map_matrix(const std::string& name, std::shared_ptr<const Mapping> file, size_t offset, size_t num_bytes,
                  Layout layout, size_t num_outputs, size_t num_inputs);
  // Checks that everything is there and of the right shape (std::invalid_argument names what is not).
  void finish();

  // Every matrix with its name, as it is packed: what `map_matrix` takes.
  std::vector<std::pair<std::string, Matrix>> matrices() const;

  void begin(int64_t sequence_id);
  void free(int64_t sequence_id);
  int64_t length(int64_t sequence_id) const;
  // The first `length` tokens, then the tokens path[i] of the last span (a tree's accepted path, root first): the first
  // of them must follow the last of the `length` tokens. After a tree, nothing can be fed before a path is kept.
  void keep(int64_t sequence_id, int64_t length, const std::vector<int64_t>& path);
  // Pages that are full are shared, the last one is copied when it is written to.
  void fork(int64_t source, int64_t target, int64_t length);

  // Feeds every span; logits [total rows, vocabulary_size] to `out`, span after span. Lengths change only when all of
  // it succeeded. Throws std::invalid_argument for spans that break the protocol, std::runtime_error where a mapped
  // file was cut meanwhile.
  void forward(const std::vector<SpanOf>& spans, float* out, Pool& pool);

  int64_t vocabulary_size() const;
  int64_t weight_bytes() const;  // of repacked weights: what one row of a pass reads, embeddings aside
  int64_t cache_bytes() const;   // of all pages in use

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace forerun
