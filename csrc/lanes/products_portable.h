// Products of weights' codes with activations, as arrays. What each function means is said here.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

#define FORERUN_EACH for (int i = 0; i < 16; ++i)
#define FORERUN_EACH_BYTE for (int i = 0; i < 64; ++i)

// How many rows of activations share one unpacking of a tile: as many as the registers hold. One row at a time here,
// which keeps the code small: sixteen lanes as arrays do not fit the registers anyway.
constexpr int kRowsAtOnce = 1;
constexpr int kFloatRowsAtOnce = 1;

// Every byte & kMask after a shift right by kCount bits within its byte.
template <int kCount, int kMask>
FORERUN_INLINE Bytes bits(Bytes a) {
  FORERUN_EACH_BYTE a.v[i] = int8_t((uint8_t(a.v[i]) >> kCount) & kMask);
  return a;
}
// Bit kFrom of every byte as its bit kTo, all others 0.
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_bit(Bytes a) {
  FORERUN_EACH_BYTE a.v[i] = int8_t(((uint8_t(a.v[i]) >> kFrom) & 1) << kTo);
  return a;
}
// Bits kFrom and kFrom + 1 likewise.
template <int kFrom, int kTo>
FORERUN_INLINE Bytes move_two_bits(Bytes a) {
  FORERUN_EACH_BYTE a.v[i] = int8_t(((uint8_t(a.v[i]) >> kFrom) & 3) << kTo);
  return a;
}
FORERUN_INLINE Bytes operator|(Bytes a, Bytes b) {
  FORERUN_EACH_BYTE a.v[i] = int8_t(a.v[i] | b.v[i]);
  return a;
}
FORERUN_INLINE void store_bytes(void* p, Bytes a) { __builtin_memcpy(p, &a, 64); }

// 16 bytes, and for every byte of `codes` (0 .. 15) the one that it names.
struct Table {
  uint8_t v[16];
};
FORERUN_INLINE Table load_table(const uint8_t* p) {
  Table t;
  FORERUN_EACH t.v[i] = p[i];
  return t;
}
FORERUN_INLINE Bytes look_up(Table t, Bytes codes) {
  FORERUN_EACH_BYTE codes.v[i] = int8_t(t.v[codes.v[i] & 15]);
  return codes;
}

// Sums over one group of products of unsigned codes below 64 with activations in -127 .. 127, lane by lane. Steps of
// four inputs are added one after the other. AVX2 keeps two sums of 16 bits a lane (inputs 0 and 1 of each step, and 2
// and 3), and they fit: codes of 4 bits reach 16 * 15 * 127 = 30480 in a group, and of 5 bits 8 * 31 * 127 = 31496 in
// half of one; signed ones, with what they start from, never leave 16 * 16 * 127 = 32512 for 5 bits in a group, and
// 8 * 32 * 127 = 32512 for 6 bits in half of one.
struct Sums {
  int32_t v[16];
};
// Whether sums have 32 bits, so that unsigned codes of 5 bits fit for a whole group.
constexpr bool kWideSums = true;
FORERUN_INLINE Sums no_sums() {
  Sums s;
  FORERUN_EACH s.v[i] = 0;
  return s;
}
// Codes that stand for code - 2^kShift start from -2^kShift times the activations' sum, as start_word keeps it: `low`
// is minus the sum of inputs 0 and 1 of each step, `high` that of 2 and 3.
FORERUN_INLINE int32_t start_word(int32_t low, int32_t high) { return low + high; }
template <int kShift>
FORERUN_INLINE Sums start_sums(const int32_t* word) {
  Sums s;
  FORERUN_EACH s.v[i] = int32_t(uint32_t(*word) << kShift);
  return s;
}
// s[lane] += sum over t < 4 of codes[4 * lane + t] * x[t]
FORERUN_INLINE void add_products(Sums& s, Bytes codes, const int8_t* x) {
  FORERUN_EACH {
    int32_t sum = 0;
    for (int t = 0; t < 4; ++t) sum += int32_t(uint8_t(codes.v[4 * i + t])) * int32_t(x[t]);
    s.v[i] += sum;
  }
}
FORERUN_INLINE I32 total(Sums s) {
  I32 r;
  FORERUN_EACH r.v[i] = s.v[i];
  return r;
}

// Factors of sums of which each fits 16 bits, and so does their total: signed codes of 3 bits in half a group reach
// 16 * 4 * 127 = 8128. Sixteen unsigned bytes less kOffset.
struct Factors {
  int32_t v[16];
};
template <int kOffset>
FORERUN_INLINE Factors load_factors(const uint8_t* p) {
  Factors f;
  FORERUN_EACH f.v[i] = int32_t(p[i]) - kOffset;
  return f;
}
// acc[lane] + total(s)[lane] * f[lane]
FORERUN_INLINE I32 add_scaled(I32 acc, Sums s, Factors f) {
  FORERUN_EACH acc.v[i] += s.v[i] * f.v[i];
  return acc;
}

// Codes of 8 bits, stored plus 128, that stand for code - 128. Start from start8, then add.
struct Codes8 {
  int8_t v[64];
};
FORERUN_INLINE Codes8 codes8(Bytes a) {
  Codes8 c;
  FORERUN_EACH_BYTE c.v[i] = int8_t(uint8_t(a.v[i]) ^ 0x80);
  return c;
}
FORERUN_INLINE I32 start8(const int32_t*) { return broadcast_i32(0); }
FORERUN_INLINE void add_products8(I32& s, Codes8 codes, const int8_t* x) {
  FORERUN_EACH {
    int32_t sum = 0;
    for (int t = 0; t < 4; ++t) sum += int32_t(codes.v[4 * i + t]) * int32_t(x[t]);
    s.v[i] += sum;
  }
}

// 32 bytes, without sign, as int16: a pair for each lane.
FORERUN_INLINE Bytes widen_pairs(const uint8_t* p) {
  Bytes r;
  for (int i = 0; i < 32; ++i) {
    int16_t value = p[i];
    __builtin_memcpy(r.v + 2 * i, &value, 2);
  }
  return r;
}
// acc[lane] + pairs[lane] . (the two int16 in `word`)
FORERUN_INLINE I32 dot_pairs(I32 acc, Bytes pairs, const int32_t* word) {
  int16_t x[2], w[2];
  __builtin_memcpy(x, word, 4);
  FORERUN_EACH {
    __builtin_memcpy(w, pairs.v + 4 * i, 4);
    acc.v[i] += int32_t(w[0]) * x[0] + int32_t(w[1]) * x[1];
  }
  return acc;
}
// As shift_left, by a count in memory.
FORERUN_INLINE I32 shift_left_each(I32 a, const int32_t* count) { return shift_left(a, *count); }

// Lanes in -128 .. 127 as bytes.
FORERUN_INLINE void store_i8(int8_t* p, I32 a) { FORERUN_EACH p[i] = int8_t(a.v[i]); }
// to[0] = the sum of a's lanes 0, 1, 4, 5, 8, 9, 12, 13; to[1] = that of a's others; to[2] and to[3] likewise of b.
FORERUN_INLINE void pair_totals(I32 a, I32 b, int32_t* to) {
  to[0] = to[1] = to[2] = to[3] = 0;
  FORERUN_EACH to[i >> 1 & 1] += a.v[i];
  FORERUN_EACH to[2 + (i >> 1 & 1)] += b.v[i];
}

#undef FORERUN_EACH
#undef FORERUN_EACH_BYTE

}  // namespace
}  // namespace forerun::FORERUN_ISA
