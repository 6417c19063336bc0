// Products of one tile with the rows of a chunk: formats with a scale by group of 32, the uneven ones among them.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// The values of uneven codes, plus what makes them unsigned: 128 for Codes8, 16 for Sums. Those of MXFP4 are 5 bits and
// a sign, so that their sums are those of kQ5_0.
struct TableBytes {
  alignas(16) uint8_t byte[16];
};
static constexpr TableBytes table_of(const int8_t (&values)[16], int offset) {
  TableBytes table{};
  for (int i = 0; i < 16; ++i) table.byte[i] = uint8_t(values[i] + offset);
  return table;
}
static constexpr TableBytes kUnevenTable = table_of(kUnevenFour, 128), kFloatTable = table_of(kFloatFour, 16);

// Totals of a group whose codes stand for code - 2^kShift.
template <int N, int kShift, class Codes>
FORERUN_INLINE void signed_totals(const Codes& codes, const Rows& rows, size_t g, I32* totals) {
  Sums sums[N];
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) sums[n] = start_sums<kShift>(rows.start(g, n));
  add_pairs<N, 0, 4>(sums, codes, rows.codes(g));
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) totals[n] = total(sums[n]);
}

template <int N>
FORERUN_INLINE void add_step8(I32* totals, Bytes codes, const int8_t* x) {
  const Codes8 step = codes8(codes);
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) add_products8(totals[n], step, x + 32 * n);
}
template <int N, int J, class Codes>
FORERUN_INLINE void add_pairs8(I32* totals, const Codes& codes, const int8_t* x) {
  Bytes even, odd;
  codes.template unpack<J>(even, odd);
  add_step8<N>(totals, even, x + 8 * J);
  add_step8<N>(totals, odd, x + 8 * J + 4);
  if constexpr (J < 3) add_pairs8<N, J + 1>(totals, codes, x);
}
// Totals of a group of the IQ4 formats.
template <int N>
FORERUN_INLINE void uneven_totals(const uint8_t* codes, const Rows& rows, size_t g, size_t ahead, I32* totals) {
  FORERUN_UNROLL
  for (int n = 0; n < N; ++n) totals[n] = start8(rows.start(g, n));
  add_pairs8<N, 0>(totals, FourBitsOfTable(codes, ahead, load_table(kUnevenTable.byte)), rows.codes(g));
}

// 2^(e - 128). The exponent's bits give 2^(e - 127), but 0 and infinity at the ends.
FORERUN_INLINE F32 half_powers(const uint8_t* e) {
  const F32 half = from_bits(shift_left(widen_u8(e), 23)) * broadcast(0.5f);
  return min(max(half, broadcast(0x1p-128f)), broadcast(0x1p127f));
}

// Layouts with float16 scales by group of 32, and kMXFP4, whose scales are powers of two.
template <Layout kOf>
struct TileOfGroups {
  static constexpr Layout kLayout = kOf;
  template <int N>
  FORERUN_INLINE_MEMBER static void multiply(const uint8_t* tile, size_t num_groups, const Rows& rows, float* out,
                                             size_t ahead) {
    const uint8_t* codes = tile + header_bytes(kOf, num_groups);
    prefetch_lines(tile + ahead, header_bytes(kOf, num_groups));
    F32 blocks[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = zero();
    for (size_t g = 0; g < num_groups; ++g, codes += code_bytes(kOf)) {
      I32 totals[N];
      multiply_group<N>(codes, rows, g, ahead, totals);
      F32 d;
      if constexpr (kOf == Layout::kMXFP4)
        d = half_powers(tile + 16 * g);
      else
        d = load_half((const uint16_t*)tile + 16 * g);
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n)
        blocks[n] = fma(to_f32(shift_left_each(totals[n], rows.lift(g, n))), d, blocks[n]);
      if constexpr (kOf == Layout::kQ4_1 || kOf == Layout::kQ5_1) {
        const F32 minimum = load_half((const uint16_t*)tile + 16 * (num_groups + g));
        FORERUN_UNROLL
        for (int n = 0; n < N; ++n) blocks[n] = fma(rows.lifted_sum(g, n), minimum, blocks[n]);
      }
    }
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n)
      store(out + 16 * n, fma(blocks[n], rows.scale(n), load(out + 16 * n)));
  }

  template <int N>
  FORERUN_INLINE_MEMBER static void multiply_group(const uint8_t* codes, const Rows& rows, size_t g, size_t ahead,
                                                   I32* totals) {
    if constexpr (kOf == Layout::kQ8_0) {
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n) totals[n] = start8(rows.start(g, n));
      FORERUN_UNROLL
      for (int i = 0; i < 8; ++i) {
        prefetch(codes + 64 * i + ahead);
        add_step8<N>(totals, load_bytes(codes + 64 * i), rows.codes(g) + 4 * i);
      }
    } else if constexpr (kOf == Layout::kQ4_0) {
      signed_totals<N, 3>(FourBits(codes, ahead), rows, g, totals);
    } else if constexpr (kOf == Layout::kQ5_0) {
      signed_totals<N, 4>(FiveBits(codes, ahead), rows, g, totals);
    } else if constexpr (kOf == Layout::kMXFP4) {
      signed_totals<N, 4>(FourBitsOfTable(codes, ahead, load_table(kFloatTable.byte)), rows, g, totals);
    } else if constexpr (kOf == Layout::kIQ4NL) {
      uneven_totals<N>(codes, rows, g, ahead, totals);
    } else if constexpr (kOf == Layout::kQ5_1) {
      unsigned_totals<N>(FiveBits(codes, ahead), rows.codes(g), totals);
    } else {
      unsigned_totals<N>(FourBits(codes, ahead), rows.codes(g), totals);
    }
  }
};

// Scales of 6 bits and a sign by group, of which a block's float16 scale is the unit.
struct TileIQ4XS {
  static constexpr Layout kLayout = Layout::kIQ4XS;
  template <int N>
  FORERUN_INLINE_MEMBER static void multiply(const uint8_t* tile, size_t, const Rows& rows, float* out, size_t ahead) {
    alignas(64) uint8_t scales[160];  // [8 groups][16]
    Bytes unpacked[4];
    unpack_six<32>(tile + 32, unpacked);
    prefetch_lines(tile + ahead, 128);
    FORERUN_UNROLL
    for (int i = 0; i < 4; ++i) store_bytes(scales + 32 * i, unpacked[i]);
    F32 blocks[N];
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n) blocks[n] = zero();
    for (size_t g = 0; g < kGroupsOfBlock; ++g) {
      I32 totals[N];
      uneven_totals<N>(tile + 128 + 256 * g, rows, g, ahead, totals);
      const F32 sc = to_f32(widen_u8(scales + 16 * g)) - broadcast(32.0f);
      FORERUN_UNROLL
      for (int n = 0; n < N; ++n)
        blocks[n] = fma(to_f32(shift_left_each(totals[n], rows.lift(g, n))), sc, blocks[n]);
    }
    const F32 d = load_half((const uint16_t*)tile);
    FORERUN_UNROLL
    for (int n = 0; n < N; ++n)
      store(out + 16 * n, fma(d * blocks[n], rows.scale(n), load(out + 16 * n)));
  }
};

}  // namespace
}  // namespace forerun::FORERUN_ISA
