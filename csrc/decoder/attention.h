// Attention over paged keys and values: what its kernels see.
//
// Numbers. Queries, keys, values and softmax weights are 16-bit integers with a float32 step each: 15 bits and a sign
// for a vector's largest number, which loses less than float16 does, and whose products are exact and twice as fast as
// float32's. Steps are chosen so that no sum can pass 2^31:
// - queries and keys: the vector is at most kLongest long (Cauchy and Schwarz bound the dot product);
// - values: no number above kMost; weights: no number above kMost, and at most kMostWeight in sum over a page.
//
// Cache. A page holds 64 tokens of every layer and KV head: for the keys 64 steps, then blocks of 16 tokens,
// [head_size / 2][16 tokens][2 dimensions], so that a lane is a token and a score needs no sum across lanes; for the
// values 64 steps, then blocks of 16 dimensions (the last one filled up), [32][16 dimensions][2 tokens], so that a lane
// is a dimension.
//
// Canonical order. Within a page, sums are exact. A row's softmax is taken over chunks of four pages, outputs are added
// page after page, weights in 16 lanes (position mod 16), and the chunks' results are folded from left to right. Pages
// and chunks are those of a row's own text, so that nothing depends on what else is computed beside it. Chunks before a
// row's window are left out; what else it does not see weighs exactly 0, whatever the slot holds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

constexpr size_t kPageTokens = 64;
constexpr size_t kChunkPages = 4;
constexpr size_t kChunkTokens = kChunkPages * kPageTokens;
constexpr size_t kMaxTile = 12;  // rows of queries that one kernel multiplies side by side, at most

constexpr float kLongest = 46000.0f;     // (kLongest + rounding)^2 < 2^31
constexpr float kMost = 32767.0f;
constexpr float kMostWeight = 65472.0f;  // (kMostWeight + rounding) * kMost < 2^31

// One token's place in the text: it sees positions from `first_position` on and below `num_positions`. Those below
// `num_shared` are cached at slots of the same number (the committed text, and a draft's trunk); position
// num_shared + i is at slot tail[i].
struct AttentionRow {
  size_t num_positions;
  size_t num_shared;
  const uint32_t* tail;
  size_t first_position = 0;  // below num_positions; above 0 in layers with a window
};

// Some tokens of one sequence, against one layer's KV head: each token has `group` heads that read it.
struct AttentionJob {
  size_t head_size;
  size_t group;
  float scale;    // what q . k is multiplied by
  float softcap;  // c: scores become c * tanh(score / c); 0: they stay
  const AttentionRow* rows;
  size_t num_rows;
  const int16_t* queries;  // [num_rows][query_stride]: `group` heads of head_size, one after the other
  size_t query_stride;
  const float* query_steps;  // [num_rows][step_stride]
  size_t step_stride;
  float* out;  // [num_rows][out_stride], as the queries
  size_t out_stride;
  const int16_t* const* pages;  // of the sequence
  size_t keys, values;          // where in each page this layer and head begin
  size_t first_chunk, last_chunk;
  float* partials;    // nullptr to finish `out`, or one record per row, head and chunk, for `merge_attention`
  size_t base_chunk;  // the records' first chunk
  size_t num_chunks;  // records of a row and head
  float* scratch;     // scratch_floats(...)
};

// Internal linkage: kernels' translation units include this, and what the linker merges must not carry their code.
namespace {

inline size_t padded_head(size_t head_size) { return (head_size + 15) / 16 * 16; }

constexpr size_t kStepsSize = kPageTokens * sizeof(float) / sizeof(int16_t);  // of a page's steps, in int16
inline size_t keys_size(size_t head_size) { return kStepsSize + kPageTokens * head_size; }
inline size_t values_size(size_t head_size) { return kStepsSize + kPageTokens * padded_head(head_size); }

// Where, after the steps, the token at `slot` of a page has its first two keys (the next two are 32 on), and its first
// value (dimension d is at d / 16 * 16 * 64 + d % 16 * 2 on).
inline size_t key_offset(size_t slot, size_t head_size) { return slot / 16 * 16 * head_size + slot % 16 * 2; }
inline size_t value_offset(size_t slot) { return slot / 2 * 32 + slot % 2; }

// A record: largest score, sum of weights, padding, then padded_head(head_size) outputs that are not yet divided.
inline size_t record_floats(size_t head_size) { return padded_head(head_size) + 16; }

// Between rows of a chunk's scores: a line more than the chunk, so that rows do not fall on the same cache sets.
constexpr size_t kScoreStride = kChunkTokens + 16;

// `tail_slots`: slots from the first to the last that any tail of the job names, 0 if there is none.
inline size_t scratch_floats(size_t head_size, size_t tail_slots) {
  const size_t of_tails = tail_slots ? tail_slots + 32 + kChunkPages * padded_head(head_size) : 0;
  return kMaxTile * (head_size / 2 + 2 * kScoreStride + kChunkPages + 2 * record_floats(head_size) + of_tails) +
         2 * kChunkTokens;
}

}  // namespace
}  // namespace forerun
