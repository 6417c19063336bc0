// Rows of float32 activations as int8 with scales: weights/packed.h describes the form.
#pragma once

#include "weights/packed.h"

namespace forerun::FORERUN_ISA {
namespace {

// One block of up to 256 values as row `m` of a chunk's block of M rows.
FORERUN_INLINE void quantise_block(const float* x, size_t num_groups, uint8_t* block, size_t M, size_t m) {
  F32 poison = zero();  // NaN where x is none or infinite
  float group_size[kGroupsOfBlock] = {}, block_size = 0.0f;
  for (size_t g = 0; g < num_groups; ++g) {
    const F32 a = load(x + 32 * g), b = load(x + 32 * g + 16);
    poison = fma(b, zero(), fma(a, zero(), poison));
    group_size[g] = largest(max(abs(a), abs(b)));
    block_size = group_size[g] > block_size ? group_size[g] : block_size;
  }
  const float visible = sum(poison);
  const bool is_zero = !(block_size >= 0x1p-100f) || visible != 0.0f;
  float* scale = (float*)(block + kScaleAt * M) + m;
  int16_t* pair_sums = (int16_t*)(block + kPairSumsAt * M) + kGroupsOfBlock * m;
  int32_t* lifts = (int32_t*)(block + kLiftsAt * M) + m;
  int32_t* starts = (int32_t*)(block + kStartsAt * M) + m;
  int32_t* half_starts = (int32_t*)(block + kHalfStartsAt * M) + m;
  float* lifted_sums = (float*)(block + kLiftedSumsAt * M) + m;
  const float steps = is_zero ? 0.0f : 16256.0f / block_size;  // 127 * 2^7
  *scale = (is_zero ? 0.0f : block_size / 16256.0f) + visible;
  for (size_t g = 0; g < kGroupsOfBlock; ++g) {
    if (g >= num_groups) {
      pair_sums[g] = 0;
      continue;
    }
    int8_t* codes = (int8_t*)block + 32 * (g * M + m);
    int32_t lift = 0, low[4] = {};
    float unit = steps;
    if (!is_zero) {
      for (; lift < 7 && group_size[g] * unit >= 127.5f; ++lift) unit *= 0.5f;
      for (int half = 0; half < 2; ++half) {
        const I32 rounded = round_to_i32(load(x + 32 * g + 16 * half) * broadcast(unit));
        store_i8(codes + 16 * half, rounded);
        pair_totals(rounded, low + 2 * half);
      }
    } else {
      store_i8(codes, broadcast_i32(0));
      store_i8(codes + 16, broadcast_i32(0));
    }
    const int32_t lifted = int32_t(uint32_t(low[0] + low[1] + low[2] + low[3]) << lift);
    pair_sums[g] = int16_t((lifted + 8) >> 4);
    lifts[g * M] = lift;
    starts[g * M] = start_word(-low[0] - low[2], -low[1] - low[3]);
    half_starts[2 * g * M] = start_word(-low[0], -low[1]);
    half_starts[(2 * g + 1) * M] = start_word(-low[2], -low[3]);
    lifted_sums[g * M] = float(lifted);
  }
}

void quantise_rows(const float* x, size_t stride, const RowsView& to, size_t row, size_t num_rows) {
  const size_t num_groups = to.num_inputs / kGroup, chunks = num_chunks(to.num_rows);
  size_t chunk = 0;
  for (size_t i = row; i < row + num_rows; ++i) {
    while (chunk + 1 < chunks && chunk_start(to.num_rows, chunk + 1) <= i) ++chunk;
    const size_t first = chunk_start(to.num_rows, chunk), M = chunk_start(to.num_rows, chunk + 1) - first;
    uint8_t* block = to.quantised + chunk * to.chunk_bytes;
    for (size_t g = 0; g < num_groups; g += kGroupsOfBlock, block += kRowBlockBytes * M) {
      const size_t count = num_groups - g < kGroupsOfBlock ? num_groups - g : kGroupsOfBlock;
      quantise_block(x + (i - row) * stride + kGroup * g, count, block, M, i - first);
    }
  }
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
