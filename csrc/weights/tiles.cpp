// One lane of a tile, written and read: packed.h describes the form.
#include <cstring>

#include "weights/codes.h"

namespace forerun {

namespace {

// Four codes at once, one a byte.
uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}
void put_word(uint8_t* p, uint32_t word) { std::memcpy(p, &word, 4); }
void put_half(uint8_t* tile, size_t index, uint16_t half) { std::memcpy(tile + 2 * index, &half, 2); }
uint16_t get_half(const uint8_t* tile, size_t index) {
  uint16_t half;
  std::memcpy(&half, tile + 2 * index, 2);
  return half;
}

constexpr uint32_t kLow4 = 0x0F0F0F0F, kLow6 = 0x3F3F3F3F, kLow2 = 0x03030303, kLow1 = 0x01010101;

// 16 codes of 6 bits (four steps) of a lane into 3 x 64 bytes, and back.
void put_sixes(const uint8_t* code, uint8_t* to) {
  const uint32_t fourth = word_at(code + 12);
  for (int i = 0; i < 3; ++i) put_word(to + 64 * i, word_at(code + 4 * i) | (fourth >> 2 * i & kLow2) << 6);
}
void get_sixes(const uint8_t* p, uint8_t* code) {
  uint32_t fourth = 0;
  for (int i = 0; i < 3; ++i) {
    const uint32_t word = word_at(p + 64 * i);
    put_word(code + 4 * i, word & kLow6);
    fourth |= (word >> 6 & kLow2) << 2 * i;
  }
  put_word(code + 12, fourth);
}

// Scales of kQ4K: 256 bytes of 6 bits, sc [8 groups][16 lanes] then mn [4 pairs][16 lanes][2], in 3 x 64 bytes.
void put_six(uint8_t* packed, size_t index, uint8_t value) {
  if (index < 192) {
    packed[index] = uint8_t((packed[index] & 0xC0) | value);
  } else {
    for (size_t i = 0; i < 3; ++i) {
      uint8_t& byte = packed[64 * i + index - 192];
      byte = uint8_t((byte & 63) | (value >> 2 * i & 3) << 6);
    }
  }
}
uint8_t get_six(const uint8_t* packed, size_t index) {
  if (index < 192) return packed[index] & 63;
  uint8_t value = 0;
  for (size_t i = 0; i < 3; ++i) value = uint8_t(value | packed[64 * i + index - 192] >> 6 << 2 * i);
  return value;
}

}  // namespace

void write_tile(Layout layout, const Codes& c, size_t num_groups, size_t lane, uint8_t* tile) {
  uint8_t* to = tile + header_bytes(layout, num_groups) + 4 * lane;
  if (layout == Layout::kQ4K || layout == Layout::kQ6K) put_half(tile, lane, c.d[0]);
  if (layout == Layout::kQ4K) {
    put_half(tile, kPanel + lane, c.minimum[0]);
    for (size_t g = 0; g < num_groups; ++g) {
      put_six(tile + 64, kPanel * g + lane, c.scale[g]);
      put_six(tile + 64, 128 + 32 * (g / 2) + 2 * lane + g % 2, c.min_scale[g]);
    }
  }
  if (layout == Layout::kQ6K) {
    for (size_t i = 0; i < 16; ++i) tile[32 + kPanel * i + lane] = c.scale[i];
    for (size_t i = 0; i < 16; ++i) put_sixes(c.code + 16 * i, to + 192 * i);
    return;
  }
  for (size_t g = 0; g < num_groups; ++g, to += code_bytes(layout)) {
    if (layout != Layout::kQ4K) put_half(tile, kPanel * g + lane, c.d[g]);
    if (layout == Layout::kQ4_1) put_half(tile, kPanel * (num_groups + g) + lane, c.minimum[g]);
    const uint8_t* code = c.code + kGroup * g;
    if (layout == Layout::kQ8_0) {
      for (size_t s = 0; s < 8; ++s) put_word(to + 64 * s, word_at(code + 4 * s));
      continue;
    }
    uint32_t fifth = 0;
    for (size_t j = 0; j < 4; ++j) {
      const uint32_t even = word_at(code + 8 * j), odd = word_at(code + 8 * j + 4);
      put_word(to + 64 * j, (even & kLow4) | (odd & kLow4) << 4);
      fifth |= (even >> 4 & kLow1) << 2 * j | (odd >> 4 & kLow1) << (2 * j + 1);
    }
    if (layout == Layout::kQ5_0) put_word(to + 256, fifth);
  }
}

void read_tile(Layout layout, const uint8_t* tile, size_t num_groups, size_t lane, Codes& c) {
  const uint8_t* from = tile + header_bytes(layout, num_groups) + 4 * lane;
  if (layout == Layout::kQ4K || layout == Layout::kQ6K) c.d[0] = get_half(tile, lane);
  if (layout == Layout::kQ4K) {
    c.minimum[0] = get_half(tile, kPanel + lane);
    for (size_t g = 0; g < num_groups; ++g) {
      c.scale[g] = get_six(tile + 64, kPanel * g + lane);
      c.min_scale[g] = get_six(tile + 64, 128 + 32 * (g / 2) + 2 * lane + g % 2);
    }
  }
  if (layout == Layout::kQ6K) {
    for (size_t i = 0; i < 16; ++i) c.scale[i] = tile[32 + kPanel * i + lane];
    for (size_t i = 0; i < 16; ++i) get_sixes(from + 192 * i, c.code + 16 * i);
    return;
  }
  for (size_t g = 0; g < num_groups; ++g, from += code_bytes(layout)) {
    if (layout != Layout::kQ4K) c.d[g] = get_half(tile, kPanel * g + lane);
    if (layout == Layout::kQ4_1) c.minimum[g] = get_half(tile, kPanel * (num_groups + g) + lane);
    uint8_t* code = c.code + kGroup * g;
    if (layout == Layout::kQ8_0) {
      for (size_t s = 0; s < 8; ++s) put_word(code + 4 * s, word_at(from + 64 * s));
      continue;
    }
    const uint32_t fifth = layout == Layout::kQ5_0 ? word_at(from + 256) : 0;
    for (size_t j = 0; j < 4; ++j) {
      const uint32_t both = word_at(from + 64 * j);
      put_word(code + 8 * j, (both & kLow4) | (fifth >> 2 * j & kLow1) << 4);
      put_word(code + 8 * j + 4, (both >> 4 & kLow4) | (fifth >> (2 * j + 1) & kLow1) << 4);
    }
  }
}

}  // namespace forerun
