// Rows of float32 activations as int8 with scales: weights/packed.h describes the form.
#pragma once

#include "weights/packed.h"

namespace forerun::FORERUN_ISA {
namespace {

// What the groups of a block have in common, and how each is scaled.
struct BlockScale {
  float scale;  // NaN where a value is none or infinite
  bool is_zero;
  alignas(64) float unit[kPanel];  // by group: codes are values * unit
  alignas(64) int32_t lift[kPanel];
};

FORERUN_INLINE void scale_block(const float* x, size_t num_groups, BlockScale& to) {
  F32 poison = zero();
  alignas(64) float group_size[kPanel] = {};
  float block_size = 0.0f;
  for (size_t g = 0; g < num_groups; ++g) {
    const F32 a = load(x + kGroup * g), b = load(x + kGroup * g + 16);
    poison = poison + fma(a, zero(), b * zero());
    group_size[g] = largest(max(abs(a), abs(b)));
    block_size = group_size[g] > block_size ? group_size[g] : block_size;
  }
  const float visible = sum(poison);
  to.is_zero = !(block_size >= 0x1p-100f) || visible != 0.0f;
  const float steps = to.is_zero ? 0.0f : 16256.0f / block_size;  // 127 * 2^7
  to.scale = (to.is_zero ? 0.0f : block_size / 16256.0f) + visible;
  const F32 in_steps = load(group_size) * broadcast(steps);
  F32 unit = broadcast(steps), lift = zero();
  float limit = 127.5f;
  FORERUN_UNROLL
  for (int i = 0; i < 7; ++i, limit *= 2.0f) {
    const F32 over = zero_where_below(broadcast(1.0f), in_steps, broadcast(limit));
    lift = lift + over;
    unit = unit * fnma(over, broadcast(0.5f), broadcast(1.0f));
  }
  store(to.unit, unit);
  store_i32(to.lift, round_to_i32(lift));
}

// One block of up to 256 values as row `m` of a chunk's block of M rows.
FORERUN_INLINE void quantise_block(const float* x, size_t num_groups, uint8_t* block, size_t M, size_t m) {
  BlockScale by;
  scale_block(x, num_groups, by);
  ((float*)(block + kScaleAt * M))[m] = by.scale;
  int16_t* pair_sums = (int16_t*)(block + kPairSumsAt * M) + kGroupsOfBlock * m;
  int32_t* lifts = (int32_t*)(block + kLiftsAt * M) + m;
  int32_t* starts = (int32_t*)(block + kStartsAt * M) + m;
  int32_t* half_starts = (int32_t*)(block + kHalfStartsAt * M) + m;
  float* lifted_sums = (float*)(block + kLiftedSumsAt * M) + m;
  int16_t* half_sums = (int16_t*)(block + kHalfSumsAt * M) + 2 * m;
  for (size_t g = 0; g < num_groups; ++g) {
    int8_t* codes = (int8_t*)block + kGroup * (g * M + m);
    int32_t sums[4] = {};
    if (by.is_zero) {
      store_i8(codes, broadcast_i32(0));
      store_i8(codes + 16, broadcast_i32(0));
    } else {
      const I32 a = round_to_i32(load(x + kGroup * g) * broadcast(by.unit[g]));
      const I32 b = round_to_i32(load(x + kGroup * g + 16) * broadcast(by.unit[g]));
      store_i8(codes, a);
      store_i8(codes + 16, b);
      pair_totals(a, b, sums);
    }
    const int32_t low = sums[0] + sums[2], high = sums[1] + sums[3];
    const int32_t lifted = int32_t(uint32_t(low + high) << by.lift[g]);
    // Ties to even: groups of lift 3 are multiples of 8, half of them ties, which must not all go one way.
    pair_sums[g] = int16_t((lifted + 7 + (lifted >> 4 & 1)) >> 4);
    lifts[g * M] = by.lift[g];
    starts[g * M] = start_word(-low, -high);
    half_starts[2 * g * M] = start_word(-sums[0], -sums[1]);
    half_starts[(2 * g + 1) * M] = start_word(-sums[2], -sums[3]);
    lifted_sums[g * M] = float(lifted);
    half_sums[2 * g * M] = int16_t(sums[0] + sums[1]);
    half_sums[2 * g * M + 1] = int16_t(sums[2] + sums[3]);
  }
  for (size_t g = num_groups; g < kGroupsOfBlock; ++g) pair_sums[g] = 0;
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
