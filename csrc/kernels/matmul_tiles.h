// Products of one tile (16 outputs, up to 256 inputs) with the rows of a chunk: what all formats share, and Q4_K, Q5_K
// and Q6_K.
//
// M is the number of rows in the chunk (it fixes where things lie), N rows from `first` are those at hand: as many as
// the registers hold. They decide only how many sums run side by side: every (row, output) is one chain of float
// operations in a fixed order, block after block: groups in order, then the minima, then the scales. Where speed counts
// M and `first` are constants once all is inlined.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// A block of a chunk of M rows, as seen from row `first`.
struct Rows {
  FORERUN_INLINE_MEMBER Rows(const uint8_t* block, size_t M, size_t first)
      : block(block + 4 * first), M(M), first_codes((const int8_t*)block + 32 * first), first(first) {}
  // Codes of group g; row n's are 32 n further on.
  FORERUN_INLINE_MEMBER const int8_t* codes(size_t g) const { return first_codes + 32 * M * g; }
  FORERUN_INLINE_MEMBER F32 scale(int n) const { return broadcast(((const float*)(block + kScaleAt * M))[n]); }
  FORERUN_INLINE_MEMBER const int32_t* pair_sums(int n, int pair) const {
    return (const int32_t*)(block + kPairSumsAt * M) + 3 * first + 4 * n + pair;
  }
  FORERUN_INLINE_MEMBER const int32_t* lift(size_t g, int n) const { return word(kLiftsAt, g, n); }
  FORERUN_INLINE_MEMBER const int32_t* start(size_t g, int n) const { return word(kStartsAt, g, n); }
  FORERUN_INLINE_MEMBER const int32_t* half_start(size_t g, int half, int n) const {
    return word(kHalfStartsAt, 2 * g + half, n);
  }
  FORERUN_INLINE_MEMBER const int32_t* half_sums(size_t g, int n) const { return word(kHalfSumsAt, g, n); }
  FORERUN_INLINE_MEMBER F32 lifted_sum(size_t g, int n) const {
    return broadcast(((const float*)(block + kLiftedSumsAt * M))[g * M + n]);
  }
  FORERUN_INLINE_MEMBER const int32_t* word(size_t at, size_t g, int n) const {
    return (const int32_t*)(block + at * M) + g * M + n;
  }
  const uint8_t* block;
  size_t M;
  const int8_t* first_codes;
  size_t first;
};

template <int N>
FORERUN_INLINE void add_step(Sums* sums, Bytes codes, const int8_t* x) {
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) add_products(sums[n], codes, x + 32 * n);
}
// Steps 2J and 2J + 1 of a group, and those up to 2 kEnd.
template <int N, int J, int kEnd, class Codes>
FORERUN_INLINE void add_pairs(Sums* sums, const Codes& codes, const int8_t* x) {
  Bytes even, odd;
  codes.template unpack<J>(even, odd);
  add_step<N>(sums, even, x + 8 * J);
  add_step<N>(sums, odd, x + 8 * J + 4);
  if constexpr (J + 1 < kEnd) add_pairs<N, J + 1, kEnd>(sums, codes, x);
}
// Totals of a group of unsigned codes.
template <int N, class Codes>
FORERUN_INLINE void unsigned_totals(const Codes& codes, const int8_t* x, I32* totals) {
  constexpr int kFirst = kWideSums || Codes::kBits <= 4 ? 4 : 2;
  Sums sums[N];
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) sums[n] = no_sums();
  add_pairs<N, 0, kFirst>(sums, codes, x);
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) totals[n] = total(sums[n]);
  if constexpr (kFirst < 4) {
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) sums[n] = no_sums();
    add_pairs<N, kFirst, 4>(sums, codes, x);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) totals[n] = totals[n] + total(sums[n]);
  }
}

// kQ4K and kQ5K.
template <Layout kOf, class Codes>
struct TileOfMinima {
  static constexpr Layout kLayout = kOf;
  template <int N>
  FORERUN_INLINE_MEMBER static void multiply(const uint8_t* tile, size_t num_groups, const Rows& rows, float* out,
                                             size_t ahead) {
    alignas(64) uint8_t scales[256];  // sc [8 groups][16], then mn [4 pairs][16][2]
    Bytes unpacked[4];
    unpack_six(tile + 64, unpacked);
    prefetch_lines(tile + ahead, 256);
    FORERUN_UNROLL
    for (int i = 0; i < 4; ++i) store_bytes(scales + 64 * i, unpacked[i]);
    F32 blocks[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = zero();
    for (size_t g = 0; g < num_groups; ++g) {
      I32 totals[N];
      unsigned_totals<N>(Codes(tile + 256 + code_bytes(kOf) * g, ahead), rows.codes(g), totals);
      const F32 sc = to_f32(widen_u8(scales + 16 * g));
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n)
        blocks[n] = fma(to_f32(shift_left_each(totals[n], rows.lift(g, n))), sc, blocks[n]);
    }
    I32 minima[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) minima[n] = broadcast_i32(0);
    FORERUN_UNROLL
    for (int pair = 0; pair < 4; ++pair) {
      const Bytes mn = widen_pairs(scales + 128 + 32 * pair);
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) minima[n] = dot_pairs(minima[n], mn, rows.pair_sums(n, pair));
    }
    const F32 d = load_half((const uint16_t*)tile);
    const F32 dmin = load_half((const uint16_t*)tile + 16) * broadcast(16.0f);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) {
      const F32 block = fnma(dmin, to_f32(minima[n]), d * blocks[n]);
      store(out + 16 * n, fma(block, rows.scale(n), load(out + 16 * n)));
    }
  }
};
using TileQ4K = TileOfMinima<Layout::kQ4K, FourBits>;
using TileQ5K = TileOfMinima<Layout::kQ5K, FiveBits>;

struct TileQ6K {
  static constexpr Layout kLayout = Layout::kQ6K;
  template <int N>
  FORERUN_INLINE_MEMBER static void multiply(const uint8_t* tile, size_t, const Rows& rows, float* out, size_t ahead) {
    prefetch_lines(tile + ahead, 288);
    F32 blocks[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = zero();
    for (size_t g = 0; g < kGroupsOfBlock; ++g) {
      FORERUN_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint8_t* codes = tile + 288 + 192 * (2 * g + half);
        Bytes steps[4];
        unpack_six(codes, steps);
        prefetch_lines(codes + ahead, 192);
        Sums sums[N];
        FORERUN_UNROLL
        for (int n = 0; n < N; ++n) sums[n] = start_sums<5>(rows.half_start(g, half, n));
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) add_step<N>(sums, steps[i], rows.codes(g) + 16 * half + 4 * i);
        const F32 sc = to_f32(widen_i8((const int8_t*)tile + 32 + 16 * (2 * g + half)));
        FORERUN_UNROLL
        for (int n = 0; n < N; ++n)
          blocks[n] = fma(to_f32(shift_left_each(total(sums[n]), rows.lift(g, n))), sc, blocks[n]);
      }
    }
    const F32 d = load_half((const uint16_t*)tile);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n)
      store(out + 16 * n, fma(d * blocks[n], rows.scale(n), load(out + 16 * n)));
  }
};

}  // namespace
}  // namespace forerun::FORERUN_ISA
