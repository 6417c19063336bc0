// Products of panels with a chunk of rows: the loops around tiles, and the choice of a tile's code.
#pragma once

#include "weights/packed.h"

#include "kernels/matmul_codes.h"
#include "kernels/matmul_floats.h"
#include "kernels/matmul_tiles.h"

#include "kernels/matmul_groups.h"
#include "kernels/matmul_halves.h"

namespace forerun::FORERUN_ISA {
namespace {

constexpr size_t kAhead = 4096;  // bytes between what is read and what is fetched: 2 to 8 KB measured alike

// The rows of a chunk, in as few passes as the registers allow and as even as possible.
template <class Tile, int M, int First = 0>
FORERUN_INLINE void multiply_tile(const uint8_t* tile, size_t num_groups, const uint8_t* x, float* out, size_t ahead) {
  constexpr int kPasses = (M - First + kRowsAtOnce - 1) / kRowsAtOnce, N = (M - First + kPasses - 1) / kPasses;
  Tile::template multiply<N>(tile, num_groups, Rows(x, M, First), out + 16 * First, ahead);
  if constexpr (First + N < M) multiply_tile<Tile, M, First + N>(tile, num_groups, x, out, ahead);
}

// Panels [first, first + count) with the M rows of a chunk: out [count][M][16]. Panels take turns block by block, so
// that a block of x is in the nearest cache for all of them.
template <class Tile, int kRows>
void multiply_chunk(const MatrixView& w, size_t first, size_t count, const uint8_t* x, size_t num_rows, float* out) {
  const size_t M = kRows > 0 ? kRows : num_rows;
  for (size_t i = 0; i < count * M; ++i) store(out + 16 * i, zero());
  const uint8_t* panels = w.data + first * w.panel_bytes;
  size_t at = 0;
  for (size_t left = w.num_inputs / kGroup; left > 0; x += kRowBlockBytes * M) {
    const size_t num_groups = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    // What lies ahead of a panel's end is the panel after the next `count`.
    const size_t ahead = kAhead + (at + kAhead >= w.panel_bytes ? (count - 1) * w.panel_bytes : 0);
    for (size_t i = 0; i < count; ++i) {
      const uint8_t* tile = panels + i * w.panel_bytes + at;
      float* results = out + 16 * M * i;
      if constexpr (kRows > 0)
        multiply_tile<Tile, kRows>(tile, num_groups, x, results, ahead);
      else
        for (size_t m = 0; m < M; ++m)
          Tile::template multiply<1>(tile, num_groups, Rows(x, M, m), results + 16 * m, ahead);
    }
    at += tile_bytes(Tile::kLayout, num_groups);
    left -= num_groups;
  }
}

template <class Tile>
void multiply_quantised(const MatrixView& w, size_t first, size_t count, const uint8_t* x, size_t M, float* out) {
  if constexpr (kRowsAtOnce == 1) {  // code for any number of rows
    multiply_chunk<Tile, 0>(w, first, count, x, M, out);
  } else {
    switch (M) {
      case 1: return multiply_chunk<Tile, 1>(w, first, count, x, M, out);
      case 2: return multiply_chunk<Tile, 2>(w, first, count, x, M, out);
      case 3: return multiply_chunk<Tile, 3>(w, first, count, x, M, out);
      case 4: return multiply_chunk<Tile, 4>(w, first, count, x, M, out);
      case 5: return multiply_chunk<Tile, 5>(w, first, count, x, M, out);
      case 6: return multiply_chunk<Tile, 6>(w, first, count, x, M, out);
      case 7: return multiply_chunk<Tile, 7>(w, first, count, x, M, out);
      default: return multiply_chunk<Tile, 8>(w, first, count, x, M, out);
    }
  }
}

void multiply_panels(const MatrixView& w, size_t first, size_t count, const RowsView& x, size_t chunk, float* out) {
  const size_t row = chunk_start(x.num_rows, chunk), M = chunk_start(x.num_rows, chunk + 1) - row;
  const uint8_t* rows = x.quantised + chunk * x.chunk_bytes;
  switch (w.layout) {
    case Layout::kFloat32: return multiply_float_panels<LoadFloat32>(w, first, count, x, row, M, out, kAhead);
    case Layout::kFloat16: return multiply_float_panels<LoadFloat16>(w, first, count, x, row, M, out, kAhead);
    case Layout::kBFloat16: return multiply_float_panels<LoadBFloat16>(w, first, count, x, row, M, out, kAhead);
    case Layout::kQ2K: return multiply_quantised<TileOfHalves<Layout::kQ2K>>(w, first, count, rows, M, out);
    case Layout::kQ3K: return multiply_quantised<TileOfHalves<Layout::kQ3K>>(w, first, count, rows, M, out);
    case Layout::kQ4K: return multiply_quantised<TileQ4K>(w, first, count, rows, M, out);
    case Layout::kQ5K: return multiply_quantised<TileQ5K>(w, first, count, rows, M, out);
    case Layout::kQ6K: return multiply_quantised<TileQ6K>(w, first, count, rows, M, out);
    case Layout::kQ4_0: return multiply_quantised<TileOfGroups<Layout::kQ4_0>>(w, first, count, rows, M, out);
    case Layout::kQ4_1: return multiply_quantised<TileOfGroups<Layout::kQ4_1>>(w, first, count, rows, M, out);
    case Layout::kQ5_0: return multiply_quantised<TileOfGroups<Layout::kQ5_0>>(w, first, count, rows, M, out);
    case Layout::kQ5_1: return multiply_quantised<TileOfGroups<Layout::kQ5_1>>(w, first, count, rows, M, out);
    case Layout::kQ8_0: return multiply_quantised<TileOfGroups<Layout::kQ8_0>>(w, first, count, rows, M, out);
    case Layout::kIQ4NL: return multiply_quantised<TileOfGroups<Layout::kIQ4NL>>(w, first, count, rows, M, out);
    case Layout::kIQ4XS: return multiply_quantised<TileIQ4XS>(w, first, count, rows, M, out);
    case Layout::kMXFP4: return multiply_quantised<TileOfGroups<Layout::kMXFP4>>(w, first, count, rows, M, out);
  }
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
