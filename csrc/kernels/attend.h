// Attention of one KV head (decoder/attention.h): tiles of query rows against its keys and values.
//
// Both products are blocked in registers: R rows by T vectors of 16 lanes, so that what is loaded of the cache serves R
// rows and what is spread of a row serves T vectors.
#pragma once

#include "kernels/attend_tile.h"

namespace forerun::FORERUN_ISA {
namespace {

// Scores of R rows and T blocks of keys: queries [pairs][R][2], keys in blocks of [pairs][16][2]. `ahead` is what will
// be read next: it is fetched meanwhile.
template <size_t R, size_t T>
FORERUN_INLINE void score(const Tile& tile, const int16_t* keys, const float* steps, size_t num_pairs,
                          const int16_t* ahead, float* to, size_t stride) {
  I32 sums[R][T];
  FORERUN_UNROLL_TILE
  for (size_t r = 0; r < R; ++r)
    FORERUN_UNROLL_TILE
    for (size_t t = 0; t < T; ++t) sums[r][t] = broadcast_i32(0);
  const int16_t* queries = tile.queries;
  for (size_t i = 0; i < num_pairs; ++i, queries += 2 * R) {
    Pairs k[T];
    FORERUN_UNROLL_TILE
    for (size_t t = 0; t < T; ++t) k[t] = load_pairs(keys + (t * num_pairs + i) * 2 * kLanes);
    FORERUN_UNROLL_TILE
    for (size_t t = 0; t < T; ++t) prefetch(ahead + (i * T + t) * 2 * kLanes);
    FORERUN_UNROLL_TILE
    for (size_t r = 0; r < R; ++r) {
      const Pairs q = broadcast_pair(queries + 2 * r);
      FORERUN_UNROLL_TILE
      for (size_t t = 0; t < T; ++t) sums[r][t] = dot(sums[r][t], k[t], q);
    }
  }
  FORERUN_UNROLL_TILE
  for (size_t t = 0; t < T; ++t) {
    const F32 step = load(steps + t * kLanes);
    FORERUN_UNROLL_TILE
    for (size_t r = 0; r < R; ++r)
      store(to + r * stride + t * kLanes, to_f32(sums[r][t]) * step * broadcast(tile.query_steps[r]));
  }
}

// Scores of R rows and `num_blocks` blocks of a page's keys, from block `first` on.
template <size_t R>
void score_page(const Tile& tile, const int16_t* page, size_t head_size, size_t first, size_t num_blocks,
                const int16_t* ahead, float* to, size_t stride) {
  constexpr size_t T = vectors_of(R);
  const float* steps = reinterpret_cast<const float*>(page) + first * kLanes;
  const int16_t* keys = page + kStepsSize + first * kLanes * head_size;
  const size_t num_pairs = head_size / 2;
  size_t b = 0;
  for (; b + T <= num_blocks; b += T)
    score<R, T>(tile, keys + b * kLanes * head_size, steps + b * kLanes, num_pairs, ahead + b * kLanes * head_size,
                to + b * kLanes, stride);
  if constexpr (T > 1)
    for (; b < num_blocks; ++b)
      score<R, 1>(tile, keys + b * kLanes * head_size, steps + b * kLanes, num_pairs, ahead + b * kLanes * head_size,
                  to + b * kLanes, stride);
}

// Outputs of R rows and T blocks of dimensions: a page's sums are exact, pages are added one after the other.
template <size_t R, size_t T>
FORERUN_INLINE void weigh(const AttentionJob& job, const Tile& tile, size_t begin, size_t end, size_t block,
                          bool from_tails) {
  const size_t shared = least(end, tile.num_shared), padded = tile.record - kLanes;
  const size_t first_page = (tile.first_in(begin) - begin) / kPageTokens;
  for (size_t p = first_page; begin + p * kPageTokens < end; ++p) {
    const size_t at = begin + p * kPageTokens;
    const size_t num_pairs = shared > at ? (least(kPageTokens, shared - at) + 1) / 2 : 0;
    const int16_t* const* page = job.pages + at / kPageTokens;
    const size_t first = job.values + kStepsSize + block * kPageTokens * kLanes;
    const int16_t* values = page[0] + first;
    const int16_t* ahead = at + kPageTokens < shared ? page[1] + first : values;
    const int16_t* weights = tile.weights + p * kPageTokens;
    const int32_t* tails = tile.tail_sums + p * R * padded + block * kLanes;
    I32 sums[R][T];
    FORERUN_UNROLL_TILE
    for (size_t r = 0; r < R; ++r)
      FORERUN_UNROLL_TILE
      for (size_t t = 0; t < T; ++t)
        sums[r][t] = from_tails ? load_i32(tails + r * padded + t * kLanes) : broadcast_i32(0);
    for (size_t i = 0; i < num_pairs; ++i) {
      Pairs v[T];
      FORERUN_UNROLL_TILE
      for (size_t t = 0; t < T; ++t) v[t] = load_pairs(values + (t * kPageTokens + 2 * i) * kLanes);
      FORERUN_UNROLL_TILE
      for (size_t t = 0; t < T; ++t) prefetch(ahead + (t * kPageTokens + 2 * i) * kLanes);
      FORERUN_UNROLL_TILE
      for (size_t r = 0; r < R; ++r) {
        const Pairs w = broadcast_pair(weights + r * kScoreStride + 2 * i);
        FORERUN_UNROLL_TILE
        for (size_t t = 0; t < T; ++t) sums[r][t] = dot(sums[r][t], v[t], w);
      }
    }
    FORERUN_UNROLL_TILE
    for (size_t r = 0; r < R; ++r) {
      const F32 step = broadcast(tile.page_steps[r * kChunkPages + p]);
      FORERUN_UNROLL_TILE
      for (size_t t = 0; t < T; ++t) {
        float* to = tile.records + r * tile.record + kLanes + (block + t) * kLanes;
        store(to, p == first_page ? to_f32(sums[r][t]) * step : fma(to_f32(sums[r][t]), step, load(to)));
      }
    }
  }
}

template <size_t R>
void weigh_chunk(const AttentionJob& job, const Tile& tile, size_t begin, size_t end, bool from_tails) {
  constexpr size_t T = vectors_of(R);
  const size_t num_blocks = padded_head(job.head_size) / kLanes;
  size_t b = 0;
  for (; b + T <= num_blocks; b += T) weigh<R, T>(job, tile, begin, end, b, from_tails);
  if constexpr (T > 1)
    for (; b < num_blocks; ++b) weigh<R, 1>(job, tile, begin, end, b, from_tails);
}

// The two products, for tiles of any size.
struct TileProducts {
  void (*score_page)(const Tile& tile, const int16_t* page, size_t head_size, size_t first, size_t num_blocks,
                     const int16_t* ahead, float* to, size_t stride);
  void (*weigh_chunk)(const AttentionJob& job, const Tile& tile, size_t begin, size_t end, bool from_tails);
};

template <size_t R>
TileProducts products_of(size_t num_rows) {
  if constexpr (R > 1)
    if (num_rows < R) return products_of<R - 1>(num_rows);
  return {score_page<R>, weigh_chunk<R>};
}

// Scores of the tile's chunk, every row's in the order of its own text.
void score_chunk(const AttentionJob& job, const TileProducts& products, const Tile& tile, size_t begin) {
  const size_t end = least(begin + kChunkTokens, tile.num_shared);
  for (size_t at = tile.first_in(begin); at < end; at += kPageTokens) {
    const int16_t* const* page = job.pages + at / kPageTokens;
    const int16_t* ahead = at + kPageTokens < end ? page[1] + job.keys : job.pages[begin / kPageTokens] + job.values;
    products.score_page(tile, page[0] + job.keys, job.head_size, 0,
                        least(kBlocks, (end - at + kLanes - 1) / kLanes), ahead, tile.scores + at - begin,
                        kScoreStride);
  }
  if (begin + kChunkTokens <= tile.first_own) return;
  for (size_t r = 0; r < tile.size; ++r) {
    const AttentionRow& row = tile.rows[r];
    const size_t last = least(begin + kChunkTokens, row.num_positions);
    for (size_t at = most(begin, most(row.num_shared, row.first_position)); at < last; ++at)
      tile.scores[r * kScoreStride + at - begin] =
          tile.tail_scores[r * tile.tail_stride + row.tail[at - row.num_shared] - tile.first_tail];
  }
}

void attend_tile(const AttentionJob& job, size_t first, size_t size) {
  const TileProducts products = products_of<kTile>(size);
  Tile tile;
  open_tile(job, first, size, tile);
  if (tile.has_tails)
    for (size_t slot = tile.first_tail; slot <= tile.last_tail; slot += kLanes) {
      const int16_t* page = job.pages[slot / kPageTokens] + job.keys;
      products.score_page(tile, page, job.head_size, slot % kPageTokens / kLanes, 1, page,
                          tile.tail_scores + slot - tile.first_tail, tile.tail_stride);
    }
  const size_t last_chunk = least(job.last_chunk, chunks_of(tile.num_positions));
  for (size_t chunk = most(job.first_chunk, tile.first_position / kChunkTokens); chunk < last_chunk; ++chunk) {
    const size_t begin = chunk * kChunkTokens;
    score_chunk(job, products, tile, begin);
    soften_chunk(job, tile, begin);
    const bool from_tails = begin + kChunkTokens > tile.first_own;
    if (from_tails) weigh_tails(job, tile, begin);
    products.weigh_chunk(job, tile, begin, least(begin + kChunkTokens, tile.num_positions), from_tails);
    for (size_t r = 0; r < size; ++r) {
      const size_t first_chunk = tile.rows[r].first_position / kChunkTokens;
      if (tile.rows[r].num_positions <= begin || chunk < first_chunk) continue;
      const float* record = tile.records + r * tile.record;
      float* to = job.partials
                      ? job.partials + ((first + r) * job.num_chunks + chunk - job.base_chunk) * tile.record
                      : tile.folded + r * tile.record;
      if (job.partials || chunk == first_chunk)
        __builtin_memcpy(to, record, tile.record * sizeof(float));
      else
        fold(record, tile.record, to);
    }
  }
  if (job.partials) return;
  for (size_t r = 0; r < size; ++r)
    finish(tile.folded + r * tile.record, job.head_size,
           job.out + (first + r) / job.group * job.out_stride + (first + r) % job.group * job.head_size);
}

void attend(const AttentionJob& job) {
  const size_t num_rows = job.num_rows * job.group, num_tiles = (num_rows + kTile - 1) / kTile;
  for (size_t tile = 0, first = 0; tile < num_tiles; ++tile) {  // tiles of equal size, give or take one row
    const size_t size = num_rows / num_tiles + (tile < num_rows % num_tiles ? 1 : 0);
    attend_tile(job, first, size);
    first += size;
  }
}

// Folds the records of a job whose chunks were computed apart.
void merge_attention(const AttentionJob& job) {
  const size_t record = record_floats(job.head_size);
  for (size_t r = 0; r < job.num_rows * job.group; ++r) {
    const AttentionRow& row = job.rows[r / job.group];
    const size_t first = row.first_position / kChunkTokens;
    float* records = job.partials + (r * job.num_chunks + first - job.base_chunk) * record;
    for (size_t chunk = 1; first + chunk < chunks_of(row.num_positions); ++chunk)
      fold(records + chunk * record, record, records);
    finish(records, job.head_size, job.out + r / job.group * job.out_stride + r % job.group * job.head_size);
  }
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
