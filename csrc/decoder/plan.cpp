#include "decoder/plan.h"

#include <algorithm>

#include "kernels/table.h"

namespace forerun {

namespace {

constexpr size_t kGroupRows = 64;       // rows of queries of a piece, at most: what one pass over a chunk serves
constexpr size_t kFewRows = 6;          // and not fewer for the sake of more pieces
constexpr size_t kPiecesPerThread = 4;  // so that a stolen core delays a step by little
constexpr size_t kInlineWork = 1000;    // below so many rows x positions, times 64 dimensions, the pool costs more
constexpr size_t kMostPartials = size_t(8) << 20;  // floats: beyond, chunks are not shared out

float* scratch(size_t num_floats) {
  static thread_local Block block;
  if (block.size() < num_floats * sizeof(float)) block = Block(num_floats * sizeof(float));
  return block.as<float>();
}

size_t chunks_of(size_t num_positions) { return (num_positions + kChunkTokens - 1) / kChunkTokens; }
size_t num_seen(const AttentionRow& row) { return row.num_positions - row.first_position; }

}  // namespace

void AttentionPlan::make(const std::vector<const FedToken*>& tokens, const FedSpans& fed,
                         const Description& description, int64_t window, int num_threads) {
  rows_.clear();
  pieces_.clear();
  join_counts_.clear();
  num_partials_ = work_ = 0;
  head_size_ = size_t(description.head_size);
  num_kv_heads_ = description.num_kv_heads;
  group_ = size_t(description.num_heads / description.num_kv_heads);
  scale_ = description.attention_scale;
  softcap_ = description.attention_softcap;
  for (const FedToken* token : tokens) {
    AttentionRow row = token->sees;
    if (window > 0 && row.num_positions > uint64_t(window)) row.first_position = row.num_positions - size_t(window);
    rows_.push_back(row);
    work_ += num_seen(row) * size_t(description.num_heads);
  }
  const size_t target = num_threads == 1 ? SIZE_MAX : work_ / (kPiecesPerThread * size_t(num_threads)) + 1;
  const size_t most = std::max<size_t>(1, kGroupRows / group_);
  for (size_t first = 0; first < tokens.size();) {
    size_t end = first;
    while (end < tokens.size() && tokens[end]->span == tokens[first]->span) ++end;
    const size_t count = end - first;
    const AttentionRow& last = rows_[end - 1];
    const size_t chunks = chunks_of(last.num_positions) - last.first_position / kChunkTokens;
    const size_t parts = size_t(num_kv_heads_) * chunks;  // of a group, more or less
    size_t num_groups = (count + most - 1) / most;
    while (num_groups < count && num_groups * parts < 2 * size_t(num_threads) && num_threads > 1 &&
           count * group_ >= kFewRows * (num_groups + 1))
      ++num_groups;
    for (size_t i = 0; i < num_groups; ++i) {
      const size_t begin = count * i / num_groups;
      add_group(first + begin, count * (i + 1) / num_groups - begin,
                fed.sequences[tokens[first]->span]->data.data(), target);
    }
    first = end;
  }
  // The largest first, so that the last ones to be taken are short.
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.work > b.work; });
  joins_.reset(new std::atomic<int>[join_counts_.size()]);
  for (size_t i = 0; i < join_counts_.size(); ++i) joins_[i].store(join_counts_[i], std::memory_order_relaxed);
}

void AttentionPlan::add_group(size_t first, size_t count, const int16_t* const* pages, size_t target) {
  size_t num_positions = 0, first_position = SIZE_MAX, work = 0;
  uint32_t first_tail = UINT32_MAX, last_tail = 0;
  for (size_t i = first; i < first + count; ++i) {
    num_positions = std::max(num_positions, rows_[i].num_positions);
    first_position = std::min(first_position, rows_[i].first_position);
    work += num_seen(rows_[i]) * group_;
    for (size_t j = 0; j + rows_[i].num_shared < rows_[i].num_positions; ++j) {
      first_tail = std::min(first_tail, rows_[i].tail[j]);
      last_tail = std::max(last_tail, rows_[i].tail[j]);
    }
  }
  const size_t base_chunk = first_position / kChunkTokens, num_chunks = chunks_of(num_positions) - base_chunk;
  const size_t partials = count * group_ * num_chunks * record_floats(head_size_);
  const bool fits = num_partials_ + size_t(num_kv_heads_) * partials <= kMostPartials;
  const size_t num_parts = fits ? std::max<size_t>(1, std::min(num_chunks, work / target)) : 1;
  Piece piece = {first, count, pages, 0, 0, 0, base_chunk, num_chunks, 0, work / num_parts, -1, 0};
  piece.scratch_floats = scratch_floats(head_size_, last_tail < first_tail ? 0 : last_tail - first_tail + 1);
  for (piece.head = 0; piece.head < num_kv_heads_; ++piece.head) {
    if (num_parts > 1) {
      piece.join = int64_t(join_counts_.size());
      join_counts_.push_back(int(num_parts));
      piece.partials = num_partials_;
      num_partials_ += partials;
    }
    for (size_t part = 0; part < num_parts; ++part) {
      piece.first_chunk = base_chunk + num_chunks * part / num_parts;
      piece.last_chunk = base_chunk + num_chunks * (part + 1) / num_parts;
      pieces_.push_back(piece);
    }
  }
}

void AttentionPlan::run(const CacheShape& shape, int64_t layer, const int16_t* queries, size_t query_stride,
                        const float* query_steps, size_t step_stride, float* out, size_t out_stride, Block& partials,
                        Pool& pool) {
  const Kernels& table = kernels();
  if (partials.size() < num_partials_ * sizeof(float)) partials = Block(num_partials_ * sizeof(float));
  const auto one = [&](int64_t index) {
    const Piece& piece = pieces_[size_t(index)];
    const size_t first_head = size_t(piece.head) * group_ * head_size_;
    AttentionJob job;
    job.head_size = head_size_;
    job.group = group_;
    job.scale = scale_;
    job.softcap = softcap_;
    job.rows = rows_.data() + piece.first_row;
    job.num_rows = piece.num_rows;
    job.queries = queries + piece.first_row * query_stride + first_head;
    job.query_stride = query_stride;
    job.query_steps = query_steps + piece.first_row * step_stride + size_t(piece.head) * group_;
    job.step_stride = step_stride;
    job.out = out + piece.first_row * out_stride + first_head;
    job.out_stride = out_stride;
    job.pages = piece.pages;
    job.keys = shape.keys(layer, piece.head);
    job.values = shape.values(layer, piece.head);
    job.first_chunk = piece.first_chunk;
    job.last_chunk = piece.last_chunk;
    job.partials = piece.join < 0 ? nullptr : partials.as<float>() + piece.partials;
    job.base_chunk = piece.base_chunk;
    job.num_chunks = piece.num_chunks;
    job.scratch = scratch(piece.scratch_floats);
    table.attend(job);
    if (piece.join < 0 || joins_[size_t(piece.join)].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    table.merge_attention(job);
    joins_[size_t(piece.join)].store(join_counts_[size_t(piece.join)], std::memory_order_relaxed);  // for another layer
  };
  if (work_ * head_size_ < kInlineWork * 64)
    for (size_t i = 0; i < pieces_.size(); ++i) one(int64_t(i));
  else
    pool.run(int64_t(pieces_.size()), one);
}

}  // namespace forerun
