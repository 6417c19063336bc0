// Products of one tile with the rows of a chunk: Q2_K and Q3_K, whose scales are by 16 inputs.
//
// Codes are so small that all of a block stays in integers, which saves the conversion of every half group. Nothing
// overflows: with |activation| <= 127, a half group's sum times its scale is at most 16 * 3 * 127 * 15 = 91,440 for
// Q2_K and 16 * 4 * 127 * 32 = 260,096 for Q3_K; a group's lifted by 7 bits 66.6 million, a block's 533 million. Sums
// for the minima, times mn <= 15, lifted, are at most 16 * 127 * 15 * 2 * 2^7 * 8 = 62.4 million, and exact.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// Step I of half a group, and those that follow.
template <int N, int I, class Codes>
FORERUN_INLINE void add_steps(Sums* sums, const Codes& codes, const int8_t* x) {
  add_step<N>(sums, codes.template step<I>(), x + 4 * I);
  if constexpr (I < 3) add_steps<N, I + 1>(sums, codes, x);
}

template <Layout kOf>
struct TileOfHalves {
  static constexpr Layout kLayout = kOf;
  static constexpr size_t kHeader = header_bytes(kOf, kGroupsOfBlock);

  template <int N>
  FORERUN_INLINE_MEMBER static void multiply(const uint8_t* tile, size_t, const Rows& rows, float* out, size_t ahead) {
    alignas(64) uint8_t scales[512];  // sc [16 halves][16], and for kQ2K mn [8 groups][16][2]
    unpack_scales(tile, scales);
    prefetch_lines(tile + ahead, kHeader);
    I32 blocks[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = broadcast_i32(0);
    for (size_t g = 0; g < kGroupsOfBlock; ++g) {
      const uint8_t* codes = tile + kHeader + code_bytes(kOf) * g;
      I32 group[N];
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) group[n] = broadcast_i32(0);
      add_half<N, 0>(codes, scales, rows, g, ahead, group);
      add_half<N, 1>(codes, scales, rows, g, ahead, group);
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) blocks[n] = blocks[n] + shift_left_each(group[n], rows.lift(g, n));
    }
    const F32 d = load_half((const uint16_t*)tile);
    F32 scaled[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) scaled[n] = d * to_f32(blocks[n]);
    if constexpr (kOf == Layout::kQ2K) subtract_minima<N>(tile, scales + 256, rows, scaled);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) store(out + 16 * n, fma(scaled[n], rows.scale(n), load(out + 16 * n)));
  }

  // In a loop of its own: beside products, eight rows' sums would not fit AVX-512's registers.
  template <int N>
  FORERUN_INLINE_MEMBER static void subtract_minima(const uint8_t* tile, const uint8_t* scales, const Rows& rows,
                                                    F32* blocks) {
    I32 minima[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) minima[n] = broadcast_i32(0);
    for (size_t g = 0; g < kGroupsOfBlock; ++g) {
      const Bytes mn = widen_pairs(scales + 32 * g);
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) {
        const I32 sum = dot_pairs(broadcast_i32(0), mn, rows.half_sums(g, n));
        minima[n] = minima[n] + shift_left_each(sum, rows.lift(g, n));
      }
    }
    const F32 dmin = load_half((const uint16_t*)tile + 16);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = fnma(dmin, to_f32(minima[n]), blocks[n]);
  }

  FORERUN_INLINE_MEMBER static void unpack_scales(const uint8_t* tile, uint8_t* scales) {
    if constexpr (kOf == Layout::kQ2K) {
      FORERUN_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Bytes both = load_bytes(tile + 64 + 64 * i);
        store_bytes(scales + 64 * i, bits<0, 15>(both));
        store_bytes(scales + 256 + 64 * i, bits<4, 15>(both));
      }
    } else {
      Bytes unpacked[4];
      unpack_six(tile + 32, unpacked);
      FORERUN_UNROLL
      for (int i = 0; i < 4; ++i) store_bytes(scales + 64 * i, unpacked[i]);
    }
  }

  // group[n] += the sums of half of a group times their scale.
  template <int N, int kHalf>
  FORERUN_INLINE_MEMBER static void add_half(const uint8_t* codes, const uint8_t* scales, const Rows& rows, size_t g,
                                             size_t ahead, I32* group) {
    const int8_t* x = rows.codes(g) + 16 * kHalf;
    Sums sums[N];
    if constexpr (kOf == Layout::kQ2K) {
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) sums[n] = no_sums();
      add_steps<N, 0>(sums, TwoBits<kHalf>(codes, ahead), x);
    } else {
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) sums[n] = start_sums<2>(rows.half_start(g, kHalf, n));
      add_steps<N, 0>(sums, ThreeBits<kHalf>(codes, ahead), x);
    }
    const Factors by = load_factors<kOf == Layout::kQ3K ? 32 : 0>(scales + 16 * (2 * g + kHalf));
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) group[n] = add_scaled(group[n], sums[n], by);
  }
};

}  // namespace
}  // namespace forerun::FORERUN_ISA
