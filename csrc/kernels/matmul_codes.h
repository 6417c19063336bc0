// How the codes of each layout are unpacked into steps: 16 lanes x 4 inputs, unsigned bytes.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// Four steps of 6 bits from 3 x 64 bytes. With kStride = 32 from 3 x 32 bytes: only the first halves of what comes out
// count.
template <int kStride = 64>
FORERUN_INLINE void unpack_six(const uint8_t* p, Bytes* steps) {
  const Bytes a = load_bytes(p), b = load_bytes(p + kStride), c = load_bytes(p + 2 * kStride);
  steps[0] = bits<0, 63>(a);
  steps[1] = bits<0, 63>(b);
  steps[2] = bits<0, 63>(c);
  steps[3] = move_two_bits<6, 0>(a) | move_two_bits<6, 2>(b) | move_two_bits<6, 4>(c);
}

FORERUN_INLINE void prefetch_lines(const uint8_t* p, size_t num_bytes) {
  for (size_t i = 0; i < num_bytes; i += 64) prefetch(p + i);
}

// Codes of 4 bits: steps 2J and 2J + 1 of a group.
struct FourBits {
  static constexpr int kBits = 4;
  FORERUN_INLINE_MEMBER FourBits(const uint8_t* group, size_t ahead) : codes(group), ahead(ahead) {}
  template <int J>
  FORERUN_INLINE_MEMBER void unpack(Bytes& even, Bytes& odd) const {
    const Bytes both = load_bytes(codes + 64 * J);
    prefetch(codes + 64 * J + ahead);
    even = bits<0, 15>(both);
    odd = bits<4, 15>(both);
  }
  const uint8_t* codes;
  size_t ahead;
};

struct FiveBits {
  static constexpr int kBits = 5;
  FORERUN_INLINE_MEMBER FiveBits(const uint8_t* group, size_t ahead)
      : codes(group), ahead(ahead), fifth(load_bytes(group + 256)) {
    prefetch(group + 256 + ahead);
  }
  template <int J>
  FORERUN_INLINE_MEMBER void unpack(Bytes& even, Bytes& odd) const {
    const Bytes both = load_bytes(codes + 64 * J);
    prefetch(codes + 64 * J + ahead);
    even = bits<0, 15>(both) | move_bit<2 * J, 4>(fifth);
    odd = bits<4, 15>(both) | move_bit<2 * J + 1, 4>(fifth);
  }
  const uint8_t* codes;
  size_t ahead;
  Bytes fifth;
};

// Codes of 4 bits that name bytes of a table.
struct FourBitsOfTable {
  FORERUN_INLINE_MEMBER FourBitsOfTable(const uint8_t* group, size_t ahead, Table table)
      : codes(group, ahead), table(table) {}
  template <int J>
  FORERUN_INLINE_MEMBER void unpack(Bytes& even, Bytes& odd) const {
    codes.template unpack<J>(even, odd);
    even = look_up(table, even);
    odd = look_up(table, odd);
  }
  FourBits codes;
  Table table;
};

// Half a group of 2 bits: step I of 4.
template <int kHalf>
struct TwoBits {
  FORERUN_INLINE_MEMBER TwoBits(const uint8_t* group, size_t ahead) : two(load_bytes(group + 64 * kHalf)) {
    prefetch(group + 64 * kHalf + ahead);
  }
  template <int I>
  FORERUN_INLINE_MEMBER Bytes step() const {
    return bits<2 * I, 3>(two);
  }
  Bytes two;
};

// Half a group of 3 bits.
template <int kHalf>
struct ThreeBits {
  FORERUN_INLINE_MEMBER ThreeBits(const uint8_t* group, size_t ahead)
      : first(load_bytes(group)), second(load_bytes(group + 64)), third(load_bytes(group + 128)) {
    if (kHalf == 0) prefetch_lines(group + ahead, 192);
  }
  template <int I>
  FORERUN_INLINE_MEMBER Bytes step() const {
    if constexpr (kHalf == 0) return bits<3 * (I % 2), 7>(I < 2 ? first : second);
    if constexpr (I < 2) return bits<3 * I, 7>(third);
    return bits<6, 3>(I == 2 ? first : second) | move_bit<4 + I, 2>(third);
  }
  Bytes first, second, third;
};

}  // namespace
}  // namespace forerun::FORERUN_ISA
