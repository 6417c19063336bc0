// How a pass's attention is cut into pieces for the pool: the same for all its layers that have the same window.
//
// A piece is some tokens of one sequence, one KV head, and some chunks of positions. Where there are many pieces, each
// takes all of its chunks. Where there are few (one token over a long text), chunks are shared out, and the last one
// to finish folds the records: the numbers are the same.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/memory.h"
#include "core/pool.h"
#include "decoder/spans.h"

namespace forerun {

class AttentionPlan {
 public:
  // For `tokens` (span after span) of `fed`, whose sequences hold pages for all their slots. `window` 0: none.
  void make(const std::vector<const FedToken*>& tokens, const FedSpans& fed, const Description& description,
            int64_t window, int num_threads);

  // Queries and outputs [tokens, heads, head_size], steps [tokens, heads], with strides between tokens.
  // `partials` grows to what is needed, and may be lent to one plan after the other.
  void run(const CacheShape& shape, int64_t layer, const int16_t* queries, size_t query_stride,
           const float* query_steps, size_t step_stride, float* out, size_t out_stride, Block& partials,
           Pool& pool);

 private:
  struct Piece {
    size_t first_row, num_rows;
    const int16_t* const* pages;
    int64_t head;
    size_t first_chunk, last_chunk;
    size_t base_chunk, num_chunks;  // of the rows' records
    size_t scratch_floats;
    size_t work;
    int64_t join;          // which counter the pieces of this one's rows and head share; -1: it has them alone
    size_t partials;       // where their records begin
  };
  void add_group(size_t first, size_t count, const int16_t* const* pages, size_t target);

  std::vector<AttentionRow> rows_;
  std::vector<Piece> pieces_;
  std::vector<int> join_counts_;
  std::unique_ptr<std::atomic<int>[]> joins_;
  size_t num_partials_ = 0, work_ = 0;
  size_t head_size_ = 0, group_ = 0;
  int64_t num_kv_heads_ = 0;
  float scale_ = 0.0f, softcap_ = 0.0f;
};

}  // namespace forerun
