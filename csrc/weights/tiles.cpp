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

bool has_minima(Layout layout) { return layout == Layout::kQ4_1 || layout == Layout::kQ5_1; }

constexpr uint32_t kLow4 = 0x0F0F0F0F, kLow6 = 0x3F3F3F3F, kLow3 = 0x07070707, kLow2 = 0x03030303, kLow1 = 0x01010101;

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

// Values of 6 bits, `count` of them in 3/4 as many bytes: the low bits of each are a value of the first three quarters,
// the high 2 bits of three bytes a value of the last.
void put_six(uint8_t* packed, size_t count, size_t index, uint8_t value) {
  const size_t quarter = count / 4;
  if (index < 3 * quarter) {
    packed[index] = uint8_t((packed[index] & 0xC0) | value);
  } else {
    for (size_t i = 0; i < 3; ++i) {
      uint8_t& byte = packed[quarter * i + index - 3 * quarter];
      byte = uint8_t((byte & 63) | (value >> 2 * i & 3) << 6);
    }
  }
}
uint8_t get_six(const uint8_t* packed, size_t count, size_t index) {
  const size_t quarter = count / 4;
  if (index < 3 * quarter) return packed[index] & 63;
  uint8_t value = 0;
  for (size_t i = 0; i < 3; ++i)
    value = uint8_t(value | packed[quarter * i + index - 3 * quarter] >> 6 << 2 * i);
  return value;
}

// Where scales and minima of a lane lie among those of all lanes: sc [groups or halves of them][16 lanes], and mn as
// products want them, by pairs, [pairs][16 lanes][2].
size_t scale_at(size_t i, size_t lane) { return kPanel * i + lane; }
size_t minimum_at(size_t i, size_t lane) { return 2 * kPanel * (i / 2) + 2 * lane + i % 2; }

// A lane's bits in front of the codes, to a tile or from it.
void put_header(Layout layout, const Codes& c, size_t num_groups, size_t lane, uint8_t* tile) {
  switch (layout) {
    case Layout::kMXFP4:
      for (size_t g = 0; g < num_groups; ++g) tile[kPanel * g + lane] = uint8_t(c.d[g]);
      return;
    case Layout::kQ2K:
      put_half(tile, kPanel + lane, c.minimum[0]);
      for (size_t i = 0; i < 16; ++i) {
        uint8_t& scale = tile[64 + scale_at(i, lane)];
        scale = uint8_t((scale & 0xF0) | c.scale[i]);
        uint8_t& minimum = tile[64 + minimum_at(i, lane)];
        minimum = uint8_t((minimum & 0x0F) | c.min_scale[i] << 4);
      }
      break;
    case Layout::kQ3K:
      for (size_t i = 0; i < 16; ++i) put_six(tile + 32, 256, scale_at(i, lane), c.scale[i]);
      break;
    case Layout::kQ4K:
    case Layout::kQ5K:
      put_half(tile, kPanel + lane, c.minimum[0]);
      for (size_t g = 0; g < num_groups; ++g) {
        put_six(tile + 64, 256, scale_at(g, lane), c.scale[g]);
        put_six(tile + 64, 256, 128 + minimum_at(g, lane), c.min_scale[g]);
      }
      break;
    case Layout::kQ6K:
      for (size_t i = 0; i < 16; ++i) tile[32 + scale_at(i, lane)] = c.scale[i];
      break;
    case Layout::kIQ4XS:
      for (size_t g = 0; g < 8; ++g) put_six(tile + 32, 128, scale_at(g, lane), c.scale[g]);
      break;
    default:
      for (size_t g = 0; g < num_groups; ++g) put_half(tile, scale_at(g, lane), c.d[g]);
      for (size_t g = 0; has_minima(layout) && g < num_groups; ++g)
        put_half(tile, scale_at(num_groups + g, lane), c.minimum[g]);
      return;
  }
  put_half(tile, lane, c.d[0]);
}

void get_header(Layout layout, const uint8_t* tile, size_t num_groups, size_t lane, Codes& c) {
  switch (layout) {
    case Layout::kMXFP4:
      for (size_t g = 0; g < num_groups; ++g) c.d[g] = tile[kPanel * g + lane];
      return;
    case Layout::kQ2K:
      c.minimum[0] = get_half(tile, kPanel + lane);
      for (size_t i = 0; i < 16; ++i) c.scale[i] = tile[64 + scale_at(i, lane)] & 15;
      for (size_t i = 0; i < 16; ++i) c.min_scale[i] = tile[64 + minimum_at(i, lane)] >> 4;
      break;
    case Layout::kQ3K:
      for (size_t i = 0; i < 16; ++i) c.scale[i] = get_six(tile + 32, 256, scale_at(i, lane));
      break;
    case Layout::kQ4K:
    case Layout::kQ5K:
      c.minimum[0] = get_half(tile, kPanel + lane);
      for (size_t g = 0; g < num_groups; ++g) {
        c.scale[g] = get_six(tile + 64, 256, scale_at(g, lane));
        c.min_scale[g] = get_six(tile + 64, 256, 128 + minimum_at(g, lane));
      }
      break;
    case Layout::kQ6K:
      for (size_t i = 0; i < 16; ++i) c.scale[i] = tile[32 + scale_at(i, lane)];
      break;
    case Layout::kIQ4XS:
      for (size_t g = 0; g < 8; ++g) c.scale[g] = get_six(tile + 32, 128, scale_at(g, lane));
      break;
    default:
      for (size_t g = 0; g < num_groups; ++g) c.d[g] = get_half(tile, scale_at(g, lane));
      for (size_t g = 0; has_minima(layout) && g < num_groups; ++g)
        c.minimum[g] = get_half(tile, scale_at(num_groups + g, lane));
      return;
  }
  c.d[0] = get_half(tile, lane);
}

// The codes of a lane's group.
void put_codes(Layout layout, const uint8_t* code, uint8_t* to) {
  switch (code_bits(layout)) {
    case 8:
      for (size_t s = 0; s < 8; ++s) put_word(to + 64 * s, word_at(code + 4 * s));
      return;
    case 6:
      put_sixes(code, to);
      put_sixes(code + 16, to + 192);
      return;
    case 3: {
      uint32_t part[3] = {};
      for (size_t s = 0; s < 6; ++s) part[s / 2] |= (word_at(code + 4 * s) & kLow3) << 3 * (s % 2);
      for (size_t s = 6; s < 8; ++s) {
        const uint32_t step = word_at(code + 4 * s);
        part[s - 6] |= (step & kLow2) << 6;
        part[2] |= (step >> 2 & kLow1) << s;
      }
      for (size_t i = 0; i < 3; ++i) put_word(to + 64 * i, part[i]);
      return;
    }
    case 2: {
      uint32_t half[2] = {};
      for (size_t s = 0; s < 8; ++s) half[s / 4] |= (word_at(code + 4 * s) & kLow2) << 2 * (s % 4);
      for (size_t i = 0; i < 2; ++i) put_word(to + 64 * i, half[i]);
      return;
    }
    default: {
      uint32_t fifth = 0;
      for (size_t j = 0; j < 4; ++j) {
        const uint32_t even = word_at(code + 8 * j), odd = word_at(code + 8 * j + 4);
        put_word(to + 64 * j, (even & kLow4) | (odd & kLow4) << 4);
        fifth |= (even >> 4 & kLow1) << 2 * j | (odd >> 4 & kLow1) << (2 * j + 1);
      }
      if (code_bits(layout) == 5) put_word(to + 256, fifth);
    }
  }
}

void get_codes(Layout layout, const uint8_t* from, uint8_t* code) {
  switch (code_bits(layout)) {
    case 8:
      for (size_t s = 0; s < 8; ++s) put_word(code + 4 * s, word_at(from + 64 * s));
      return;
    case 6:
      get_sixes(from, code);
      get_sixes(from + 192, code + 16);
      return;
    case 3: {
      const uint32_t part[3] = {word_at(from), word_at(from + 64), word_at(from + 128)};
      for (size_t s = 0; s < 6; ++s) put_word(code + 4 * s, part[s / 2] >> 3 * (s % 2) & kLow3);
      for (size_t s = 6; s < 8; ++s)
        put_word(code + 4 * s, (part[s - 6] >> 6 & kLow2) | (part[2] >> s & kLow1) << 2);
      return;
    }
    case 2:
      for (size_t s = 0; s < 8; ++s)
        put_word(code + 4 * s, word_at(from + 64 * (s / 4)) >> 2 * (s % 4) & kLow2);
      return;
    default: {
      const uint32_t fifth = code_bits(layout) == 5 ? word_at(from + 256) : 0;
      for (size_t j = 0; j < 4; ++j) {
        const uint32_t both = word_at(from + 64 * j);
        put_word(code + 8 * j, (both & kLow4) | (fifth >> 2 * j & kLow1) << 4);
        put_word(code + 8 * j + 4, (both >> 4 & kLow4) | (fifth >> (2 * j + 1) & kLow1) << 4);
      }
    }
  }
}

}  // namespace

void write_tile(Layout layout, const Codes& c, size_t num_groups, size_t lane, uint8_t* tile) {
  put_header(layout, c, num_groups, lane, tile);
  uint8_t* to = tile + header_bytes(layout, num_groups) + 4 * lane;
  for (size_t g = 0; g < num_groups; ++g) put_codes(layout, c.code + kGroup * g, to + code_bytes(layout) * g);
}

void read_tile(Layout layout, const uint8_t* tile, size_t num_groups, size_t lane, Codes& c) {
  get_header(layout, tile, num_groups, lane, c);
  const uint8_t* from = tile + header_bytes(layout, num_groups) + 4 * lane;
  for (size_t g = 0; g < num_groups; ++g) get_codes(layout, from + code_bytes(layout) * g, c.code + kGroup * g);
}

}  // namespace forerun
