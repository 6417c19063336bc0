// Blocks of weights as a file stores them, to codes and scales.
#include <cstring>

#include "weights/codes.h"

namespace forerun {

namespace {

uint16_t half_at(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }

// 16 bytes of nibbles: inputs 0 .. 15 low, 16 .. 31 high.
void read_nibbles(const uint8_t* p, uint8_t* to) {
  for (int i = 0; i < 16; ++i) to[i] = p[i] & 15;
  for (int i = 0; i < 16; ++i) to[16 + i] = p[i] >> 4;
}

// Bit i of `four` is the fifth bit of code i.
void add_fifth_bits(uint32_t four, uint8_t* code) {
  uint32_t word;
  std::memcpy(&word, code, 4);
  word |= (four * 0x00204081 & 0x01010101) << 4;  // copies 7 bits apart: bit i lands at the foot of byte i
  std::memcpy(code, &word, 4);
}

// Blocks of 32 weights: d, m where there is one, a fifth bit of each where there is one, nibbles.
void read_group(const uint8_t* p, bool has_minimum, bool has_fifth, size_t g, Codes& to) {
  uint8_t* code = to.code + kGroup * g;
  to.d[g] = half_at(p);
  p += 2;
  if (has_minimum) {
    to.minimum[g] = half_at(p);
    p += 2;
  }
  read_nibbles(has_fifth ? p + 4 : p, code);
  for (int i = 0; has_fifth && i < 8; ++i) add_fifth_bits(p[i / 2] >> 4 * (i % 2) & 15, code + 4 * i);
}

// 12 bytes of 6-bit scales and minima.
void read_scales_and_minima(const uint8_t* s, Codes& to) {
  for (int g = 0; g < 4; ++g) {
    to.scale[g] = s[g] & 63;
    to.min_scale[g] = s[g + 4] & 63;
    to.scale[g + 4] = uint8_t((s[g + 8] & 15) | s[g] >> 6 << 4);
    to.min_scale[g + 4] = uint8_t(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
  }
}

// d, dmin, scales and minima, for 5 bits 32 bytes (bit g of each is of group g), 128 bytes of nibbles: two groups share
// 32 bytes.
void read_q4k_or_q5k(const uint8_t* p, bool has_fifth, Codes& to) {
  to.d[0] = half_at(p);
  to.minimum[0] = half_at(p + 2);
  read_scales_and_minima(p + 4, to);
  const uint8_t* fifth = p + 16;
  const uint8_t* nibbles = has_fifth ? p + 48 : p + 16;
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) {
      const int high = has_fifth ? (fifth[i] >> g & 1) << 4 : 0;
      to.code[32 * g + i] = uint8_t((nibbles[32 * (g / 2) + i] >> 4 * (g % 2) & 15) | high);
    }
}

// Low nibbles [2 halves][2][32] (two runs of 32 inputs a byte), high bits [2 halves][32] (four), scales [16], d.
void read_q6k(const uint8_t* p, Codes& to) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = p + 64 * half;
    const uint8_t* high = p + 128 + 32 * half;
    uint8_t* code = to.code + 128 * half;
    for (int i = 0; i < 32; ++i) {
      code[i] = uint8_t((low[i] & 15) | (high[i] & 3) << 4);
      code[32 + i] = uint8_t((low[32 + i] & 15) | (high[i] >> 2 & 3) << 4);
      code[64 + i] = uint8_t(low[i] >> 4 | (high[i] >> 4 & 3) << 4);
      code[96 + i] = uint8_t(low[32 + i] >> 4 | high[i] >> 6 << 4);
    }
  }
  std::memcpy(to.scale, p + 192, 16);
  to.d[0] = half_at(p + 208);
}

// Codes of two bits [2 halves][32]: four runs of 32 inputs a byte.
void read_two_bits(const uint8_t* p, Codes& to) {
  for (int run = 0; run < 8; ++run)
    for (int i = 0; i < 32; ++i) to.code[32 * run + i] = p[32 * (run / 4) + i] >> 2 * (run % 4) & 3;
}

// Scales and minima [16] as nibbles, codes, d, dmin.
void read_q2k(const uint8_t* p, Codes& to) {
  for (int i = 0; i < 16; ++i) to.scale[i] = p[i] & 15;
  for (int i = 0; i < 16; ++i) to.min_scale[i] = p[i] >> 4;
  read_two_bits(p + 16, to);
  to.d[0] = half_at(p + 80);
  to.minimum[0] = half_at(p + 82);
}

// Third bits [32] (bit g of each is of group g), two bits, scales [16] as 8 bytes of nibbles and 4 of high bits, d.
void read_q3k(const uint8_t* p, Codes& to) {
  read_two_bits(p + 32, to);
  for (int i = 0; i < 256; ++i) to.code[i] = uint8_t(to.code[i] | (p[i % 32] >> i / 32 & 1) << 2);
  const uint8_t* s = p + 96;
  for (int i = 0; i < 16; ++i)
    to.scale[i] = uint8_t((s[i % 8] >> 4 * (i / 8) & 15) | (s[8 + i % 4] >> 2 * (i / 4) & 3) << 4);
  to.d[0] = half_at(p + 108);
}

// d, scales [8] as 2 bytes of high bits and 4 of nibbles, nibbles group after group.
void read_iq4xs(const uint8_t* p, Codes& to) {
  to.d[0] = half_at(p);
  const uint16_t high = half_at(p + 2);
  for (int g = 0; g < 8; ++g) {
    to.scale[g] = uint8_t((p[4 + g / 2] >> 4 * (g % 2) & 15) | (high >> 2 * g & 3) << 4);
    read_nibbles(p + 8 + 16 * g, to.code + 32 * g);
  }
}

}  // namespace

void read_stored(Layout layout, const uint8_t* p, size_t num_groups, Codes& to) {
  switch (layout) {
    case Layout::kFloat32:
    case Layout::kFloat16:
    case Layout::kBFloat16: return;  // no codes
    case Layout::kQ2K: return read_q2k(p, to);
    case Layout::kQ3K: return read_q3k(p, to);
    case Layout::kQ4K: return read_q4k_or_q5k(p, false, to);
    case Layout::kQ5K: return read_q4k_or_q5k(p, true, to);
    case Layout::kQ6K: return read_q6k(p, to);
    case Layout::kIQ4XS: return read_iq4xs(p, to);
    default: break;
  }
  const size_t num_bytes = stored_bytes(layout, 1);
  for (size_t g = 0; g < num_groups; ++g, p += num_bytes) {
    switch (layout) {
      case Layout::kQ8_0:
        to.d[g] = half_at(p);
        for (int i = 0; i < 32; ++i) to.code[32 * g + i] = uint8_t(p[2 + i] ^ 0x80);
        break;
      case Layout::kMXFP4:
        to.d[g] = p[0];
        read_nibbles(p + 1, to.code + 32 * g);
        break;
      default:
        read_group(p, layout == Layout::kQ4_1 || layout == Layout::kQ5_1, code_bits(layout) == 5, g, to);
    }
  }
}

}  // namespace forerun
