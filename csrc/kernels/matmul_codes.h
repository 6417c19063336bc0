// How the codes of each layout are unpacked into steps: 16 lanes x 4 inputs, unsigned bytes.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

// Four steps of 6 bits from 3 x 64 bytes.
FORERUN_INLINE void unpack_six(const uint8_t* p, Bytes* steps) {
  const Bytes a = load_bytes(p), b = load_bytes(p + 64), c = load_bytes(p + 128);
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

}  // namespace
}  // namespace forerun::FORERUN_ISA
