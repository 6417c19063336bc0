// Attention's parts that are not the two products: a tile's rows, softmax weights, and folding.
#pragma once

#include "decoder/attention.h"
#include "lanes/pairs.h"

namespace forerun::FORERUN_ISA {
namespace {

// Rows of a tile, and vectors side by side for R rows: R * T sums, T operands and a spread number fit the registers,
// and there are enough independent sums to hide an instruction's latency.
#if defined(FORERUN_LANES_AVX512)
constexpr size_t kTile = 12;
constexpr size_t vectors_of(size_t rows) { return rows <= 6 ? 4 : 2; }
#elif defined(FORERUN_LANES_AVX2)
constexpr size_t kTile = 6;
constexpr size_t vectors_of(size_t rows) { return rows == 1 ? 4 : rows == 2 ? 2 : 1; }
#elif defined(FORERUN_LANES_NEON)
constexpr size_t kTile = 6;
constexpr size_t vectors_of(size_t rows) { return rows <= 2 ? 2 : 1; }
#else
constexpr size_t kTile = 4;
constexpr size_t vectors_of(size_t) { return 1; }
#endif
static_assert(kTile <= kMaxTile, "scratch is laid out for kMaxTile rows");

// Loops over a tile's rows and vectors vanish also where the compiler would leave them: their sums live in registers.
#if defined(__clang__)
#define FORERUN_UNROLL_TILE _Pragma("clang loop unroll(full)")
#else
#define FORERUN_UNROLL_TILE _Pragma("GCC unroll 16")
#endif

constexpr float kLog2e = 1.44269504f;
constexpr size_t kLanes = 16;
constexpr size_t kBlocks = kPageTokens / kLanes;  // blocks of keys in a page

constexpr size_t least(size_t a, size_t b) { return a < b ? a : b; }
constexpr size_t most(size_t a, size_t b) { return a > b ? a : b; }
constexpr size_t chunks_of(size_t num_positions) { return (num_positions + kChunkTokens - 1) / kChunkTokens; }

// What `size` rows of a job see, and where their numbers are kept (in the job's scratch).
struct Tile {
  size_t size;
  AttentionRow rows[kTile];
  float query_steps[kTile];        // times the job's scale, times log2(e): weights are powers of 2
  size_t num_positions = 0;        // of the row that sees most
  size_t num_shared = 0;           // likewise
  size_t first_position = SIZE_MAX;  // of the row that sees furthest back
  bool has_tails = false;
  size_t first_own = SIZE_MAX;     // the first position that some tail has
  size_t first_tail = SIZE_MAX, last_tail = 0;  // slots of all tails; first_tail is the first one of a block
  int16_t* queries;                // [head_size / 2][size][2]
  float* scores;                   // [size][kScoreStride], of a chunk; later p times the value's step
  int16_t* weights;                // [size][kScoreStride]
  float* page_steps;               // [size][kChunkPages], of the weights
  float* value_steps;              // [2][kChunkTokens]: at slots of the same number; of a row with a tail
  size_t record;
  float* records;                  // [size][record], of a chunk
  float* folded;                   // [size][record], of the chunks before
  size_t tail_stride = 0;
  float* tail_scores = nullptr;    // [size][tail_stride], slot by slot
  int32_t* tail_sums = nullptr;    // [kChunkPages][size][padded head]

  // Where, in the chunk at `begin`, the first page begins that some row sees.
  size_t first_in(size_t begin) const { return most(begin, first_position / kPageTokens * kPageTokens); }
};

// Hands out the job's scratch; scratch_floats has the same list.
struct Scratch {
  float* free;
  float* take(size_t floats_of_row) {
    float* taken = free;
    free += kMaxTile * floats_of_row;
    return taken;
  }
};

void open_tile(const AttentionJob& job, size_t first, size_t size, Tile& tile) {
  tile.size = size;
  tile.record = record_floats(job.head_size);
  Scratch scratch = {job.scratch};
  tile.value_steps = scratch.free;
  scratch.free += 2 * kChunkTokens;
  tile.scores = scratch.take(kScoreStride);
  tile.weights = reinterpret_cast<int16_t*>(scratch.take(kScoreStride));
  tile.page_steps = scratch.take(kChunkPages);
  tile.records = scratch.take(tile.record);
  tile.folded = scratch.take(tile.record);
  tile.queries = reinterpret_cast<int16_t*>(scratch.take(job.head_size / 2));
  for (size_t r = 0; r < size; ++r) {
    const size_t token = (first + r) / job.group, head = (first + r) % job.group;
    const AttentionRow& row = job.rows[token];
    const int16_t* query = job.queries + token * job.query_stride + head * job.head_size;
    for (size_t i = 0; i < job.head_size / 2; ++i)
      __builtin_memcpy(tile.queries + 2 * (i * size + r), query + 2 * i, 2 * sizeof(int16_t));
    tile.query_steps[r] = job.query_steps[token * job.step_stride + head] * (job.scale * kLog2e);
    tile.rows[r] = row;
    tile.num_positions = most(tile.num_positions, row.num_positions);
    tile.num_shared = most(tile.num_shared, row.num_shared);
    tile.first_position = least(tile.first_position, row.first_position);
    for (size_t i = 0; i + row.num_shared < row.num_positions; ++i) {
      tile.has_tails = true;
      tile.first_own = least(tile.first_own, row.num_shared);
      tile.first_tail = least(tile.first_tail, row.tail[i] / kLanes * kLanes);
      tile.last_tail = most(tile.last_tail, row.tail[i]);
    }
  }
  if (!tile.has_tails) return;
  tile.tail_stride = (tile.last_tail - tile.first_tail) / kLanes * kLanes + kLanes;
  tile.tail_sums = reinterpret_cast<int32_t*>(scratch.take(kChunkPages * padded_head(job.head_size)));
  tile.tail_scores = scratch.take(tile.tail_stride);
}

// 2^x for x <= 0, to 5e-7, never below 2^-115: a weight of 2e-35 is as good as none, and neither a mask nor subnormal
// numbers arise. 2^0 is 1 exactly. NaN stays NaN, so that a broken score breaks its row visibly.
//
// x = n + f with |f| <= 1/2, and a polynomial for 2^f with the least relative error among those that are 1 at 0.
FORERUN_INLINE F32 weight(F32 x) {
  const F32 clamped = max(broadcast(-115.0f), x);  // the second operand where one is NaN
  const I32 n = round_to_i32(clamped);
  const F32 f = clamped - to_f32(n);
  F32 p = broadcast(1.11255073e-3f);
  p = fma(p, f, broadcast(9.66628268e-3f));
  p = fma(p, f, broadcast(5.55740036e-2f));
  p = fma(p, f, broadcast(2.40223512e-1f));
  p = fma(p, f, broadcast(6.93142831e-1f));
  p = fma(p, f, broadcast(1.0f));
  return p * from_bits(shift_left(n + broadcast_i32(127), 23));
}

FORERUN_INLINE float weight_of(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, weight(broadcast(x)));
  return lanes[0];
}

// x with lanes set to 0, but for those of [first, count).
FORERUN_INLINE F32 only(F32 x, size_t first, size_t count) {
  alignas(64) float lanes[kLanes];
  store(lanes, x);
  for (size_t i = 0; i < least(first, kLanes); ++i) lanes[i] = 0.0f;
  for (size_t i = count; i < kLanes; ++i) lanes[i] = 0.0f;
  return load(lanes);
}

// The softmax of one row's chunk of scores [hidden, count), hidden < count: the largest score and the sum of weights go
// to `record`, weights times values' steps, page by page as integers and their step, to `weights` and `page_steps`.
// What stands before `hidden` does not matter, and weighs 0.
void soften(float* scores, size_t hidden, size_t count, const float* value_steps, float* record, int16_t* weights,
            float* page_steps) {
  const size_t start = hidden / kLanes * kLanes, whole = count / kLanes * kLanes;
  const size_t inside = (hidden + kLanes - 1) / kLanes * kLanes;  // blocks from here on, up to `whole`, are seen wholly
  const size_t num_inside = whole > inside ? whole - inside : 0;
  if (hidden > 0) {
    for (size_t i = start; i < hidden; ++i) scores[i] = scores[hidden];
    for (size_t i = 0; i < start; ++i) weights[i] = 0;
    for (size_t page = 0; page < hidden / kPageTokens; ++page) page_steps[page] = 0.0f;
  }
  if (whole < count)  // lanes beyond the last position repeat a score, so that they do not matter for the largest
    for (size_t i = count; i < whole + kLanes; ++i) scores[i] = scores[hidden];
  F32 top = load(scores + start);
  for (size_t i = start + kLanes; i < count; i += kLanes) top = max(load(scores + i), top);
  record[0] = largest(top);
  const F32 subtract = broadcast(record[0]);
  F32 total = zero();
  for (size_t page = hidden / kPageTokens; page * kPageTokens < count; ++page) {
    const size_t first = most(page * kPageTokens, start), end = least((page + 1) * kPageTokens, count);
    F32 page_total = zero(), page_top = zero();
    for (size_t i = first; i < end; i += kLanes) {
      F32 p = weight(load(scores + i) - subtract), w = p * load(value_steps + i);
      if (i - inside >= num_inside) {
        const size_t before = hidden > i ? hidden - i : 0;
        p = only(p, before, count - i), w = only(w, before, count - i);
      }
      total = total + p;
      page_total = page_total + w;
      page_top = max(w, page_top);
      store(scores + i, w);
    }
    const float by_sum = sum(page_total) * (1.0f / kMostWeight), by_top = largest(page_top) * (1.0f / kMost);
    const float step = by_top > by_sum ? by_top : by_sum;  // by_sum where it is NaN
    page_steps[page] = step;
    const F32 scale = broadcast(step > 1e-30f ? 1.0f / step : 0.0f);
    for (size_t i = first; i < end; i += kLanes) store_i16(weights + i, round_to_i32(load(scores + i) * scale));
  }
  record[1] = sum(total);
}

// Scores are in powers of 2, and so is `cap`.
void cap_scores(float* scores, size_t hidden, size_t count, float cap) {
  for (size_t i = hidden / kLanes * kLanes; i < count; i += kLanes)
    store(scores + i, soft_cap(load(scores + i), broadcast(cap)));
}

void soften_chunk(const AttentionJob& job, const Tile& tile, size_t begin) {
  const size_t end = least(begin + kChunkTokens, tile.num_positions);
  const size_t shared = least(end, tile.num_shared);
  for (size_t at = tile.first_in(begin); at < shared; at += kPageTokens)
    __builtin_memcpy(tile.value_steps + at - begin, job.pages[at / kPageTokens] + job.values,
                     kPageTokens * sizeof(float));
  for (size_t r = 0; r < tile.size; ++r) {
    const AttentionRow& row = tile.rows[r];
    const size_t last = least(end, row.num_positions), hidden = most(begin, row.first_position) - begin;
    const size_t count = last > begin + hidden ? last - begin : 0;  // 0: it sees nothing of the chunk
    const float* steps = tile.value_steps;
    if (row.num_shared < last) {
      float* own = tile.value_steps + kChunkTokens;
      __builtin_memcpy(own, tile.value_steps, kChunkTokens * sizeof(float));
      for (size_t at = most(begin + hidden, row.num_shared); at < last; ++at) {
        const size_t slot = row.tail[at - row.num_shared];
        __builtin_memcpy(own + at - begin, job.pages[slot / kPageTokens] + job.values + slot % kPageTokens * 2,
                         sizeof(float));
      }
      steps = own;
    }
    int16_t* weights = tile.weights + r * kScoreStride;
    float* page_steps = tile.page_steps + r * kChunkPages;
    if (count) {
      float* scores = tile.scores + r * kScoreStride;
      if (job.softcap > 0.0f) cap_scores(scores, hidden, count, job.softcap * kLog2e);
      soften(scores, hidden, count, steps, tile.records + r * tile.record, weights, page_steps);
    }
    // What only other rows of the tile see weighs nothing.
    for (size_t i = (count + kLanes - 1) / kLanes * kLanes; i < end - begin + 1; ++i) weights[i] = 0;
    for (size_t p = (count + kPageTokens - 1) / kPageTokens; p < kChunkPages; ++p) page_steps[p] = 0.0f;
  }
}

// Takes the weights of tails out of the rows' lists and multiplies them with the values at their own slots.
void weigh_tails(const AttentionJob& job, const Tile& tile, size_t begin) {
  const size_t padded = tile.record - kLanes;
  for (size_t i = 0; i < kChunkPages * tile.size * padded; ++i) tile.tail_sums[i] = 0;
  for (size_t r = 0; r < tile.size; ++r) {
    const AttentionRow& row = tile.rows[r];
    const size_t last = least(begin + kChunkTokens, row.num_positions);
    for (size_t at = most(begin, most(row.num_shared, row.first_position)); at < last; ++at) {
      const size_t slot = row.tail[at - row.num_shared], in_page = slot % kPageTokens;
      const int16_t* values = job.pages[slot / kPageTokens] + job.values + kStepsSize + in_page / 2 * 2 * kLanes;
      int32_t* sums = tile.tail_sums + ((at - begin) / kPageTokens * tile.size + r) * padded;
      int16_t* weight = tile.weights + r * kScoreStride + at - begin;
      int16_t pair[2] = {0, 0};
      pair[in_page % 2] = *weight;
      for (size_t d = 0; d < padded; d += kLanes)
        store_i32(sums + d, dot(load_i32(sums + d), load_pairs(values + d * kPageTokens), broadcast_pair(pair)));
      *weight = 0;
    }
  }
}

// Folds a chunk's record into the record of the chunks before it.
void fold(const float* record, size_t size, float* into) {
  const float most_of_both = record[0] > into[0] ? record[0] : into[0];
  const float old_part = weight_of(into[0] - most_of_both), new_part = weight_of(record[0] - most_of_both);
  into[0] = most_of_both;
  into[1] = __builtin_fmaf(record[1], new_part, into[1] * old_part);
  const F32 a = broadcast(old_part), b = broadcast(new_part);
  for (size_t i = kLanes; i < size; i += kLanes) store(into + i, fma(load(record + i), b, load(into + i) * a));
}

void finish(const float* record, size_t head_size, float* to) {
  const F32 total = broadcast(record[1]);
  alignas(64) float rest[kLanes];
  for (size_t i = 0; i < head_size; i += kLanes) {
    const F32 x = load(record + kLanes + i) / total;
    if (i + kLanes <= head_size) {
      store(to + i, x);
    } else {
      store(rest, x);
      for (size_t j = i; j < head_size; ++j) to[j] = rest[j - i];
    }
  }
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
