// What the matrix kernels see: repacked weights, and rows of activations quantised for them.
//
// Weights. Outputs come in panels of 16, one per lane. A panel holds its inputs block after block, each block's scales
// first (so that they are there when its codes arrive), in one forward stream. A matrix whose number of outputs is no
// multiple of 16 is filled up with zeros. tiles.cpp writes and reads the tiles (a block of a panel).
//
// Codes of one group (32 inputs) of a panel: 64 bytes hold 16 lanes x 4 inputs, a step. By width:
// 4 bits   steps 2j and 2j + 1 share 64 bytes, in the low and the high nibbles
// 5 bits   likewise, and the fifth bits lie apart: bit s of each of 64 bytes is that of step s
// 2 bits   four steps (half a group) share 64 bytes, lowest bits first
// 3 bits   eight steps in 3 x 64 bytes, two in the low 6 bits of each; steps 6 and 7 have their low 2 bits at the top
//          of the first and the second, and their third bits in bits 6 and 7 of the third
// 6 bits   four steps in 3 x 64 bytes: the low 6 bits of each are a step, the high 2 bits of the three the fourth.
//          Scales of 6 bits likewise, 3/4 of them and then the rest.
//
// Activations. A row is cut into blocks of up to 256 inputs (the last one may be shorter: K = 896 is 3.5 blocks) and
// groups of 32. Each block has one float scale, the largest magnitude / 127 / 2^7, and each group is stored as int8
// steps of scale * 2^lift, with the smallest lift in 0 .. 7 that its own magnitude allows: outliers cost their
// neighbours' groups nothing, and putting a group's dot product on the block's scale is an exact integer shift. A block
// with a NaN or an infinity has a NaN for its scale, so that it stays visible in all its products; one whose largest
// magnitude is below 2^-100 counts as zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

constexpr size_t kPanel = 16;   // outputs of one panel
constexpr size_t kGroup = 32;   // inputs that share an activation step
constexpr size_t kBlock = 256;  // inputs that share an activation scale
constexpr size_t kChunk = 8;    // rows that one pass over a panel multiplies at most
constexpr size_t kGroupsOfBlock = kBlock / kGroup;

// How a matrix is laid out in memory; the formulas give a weight from its code.
enum class Layout : uint8_t {
  kFloat32,   // as stored
  kFloat16,
  kBFloat16,
  kQ4K,       // d * sc * code - dmin * mn: 4 bits, 6-bit sc and mn per 32, float16 d and dmin per 256 (or what is left)
  kQ6K,       // d * sc * (code - 32): 6 bits, int8 sc per 16, float16 d per 256
  kQ4_0,      // d * (code - 8): 4 bits, float16 d per 32
  kQ4_1,      // d * code + m: 4 bits, float16 d and m per 32
  kQ5_0,      // d * (code - 16): 5 bits, float16 d per 32
  kQ8_0,      // d * (code - 128): 8 bits, float16 d per 32
  kQ5_1,      // as kQ4_1, 5 bits
  kQ5K,       // as kQ4K, 5 bits
  kQ2K,       // as kQ4K, 2 bits, 4-bit sc and mn per 16
  kQ3K,       // d * (sc - 32) * (code - 4): 3 bits, 6-bit sc per 16, float16 d per 256
  kIQ4NL,     // d * kUnevenFour[code]: 4 bits, float16 d per 32
  kIQ4XS,     // d * (sc - 32) * kUnevenFour[code]: 4 bits, 6-bit sc per 32, float16 d per 256
  kMXFP4,     // 2^(e - 128) * kFloatFour[code]: 4 bits, 8-bit e per 32
};

// What the codes of 4 bits stand for where steps are uneven: the IQ4 formats' values, and twice those of e2m1, a float
// of one sign, two exponent and one fraction bits.
static constexpr int8_t kUnevenFour[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static constexpr int8_t kFloatFour[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct MatrixView {
  Layout layout;
  size_t num_outputs;
  size_t num_inputs;
  size_t panel_bytes;
  const uint8_t* data;
};

// Bits of a code. Static: this header is compiled for each instruction set.
static constexpr size_t code_bits(Layout layout) {
  switch (layout) {
    case Layout::kQ2K: return 2;
    case Layout::kQ3K: return 3;
    case Layout::kQ5_0:
    case Layout::kQ5_1:
    case Layout::kQ5K: return 5;
    case Layout::kQ6K: return 6;
    case Layout::kQ8_0: return 8;
    default: return 4;
  }
}
// Bytes of the codes of one group of a panel.
static constexpr size_t code_bytes(Layout layout) { return code_bits(layout) * kPanel * kGroup / 8; }
// Bytes in front of the codes of a tile of `num_groups` groups: d, dmin or m (float16 [16] each), then sc and mn; e in
// kMXFP4.
static constexpr size_t header_bytes(Layout layout, size_t num_groups) {
  switch (layout) {
    case Layout::kQ4K:
    case Layout::kQ5K: return 64 + 192;
    case Layout::kQ6K: return 32 + 256;
    case Layout::kQ2K: return 64 + 256;
    case Layout::kQ3K: return 32 + 192;
    case Layout::kIQ4XS: return 32 + 96;
    case Layout::kQ4_1:
    case Layout::kQ5_1: return 64 * num_groups;
    case Layout::kMXFP4: return 16 * num_groups;
    default: return 32 * num_groups;
  }
}
static constexpr size_t tile_bytes(Layout layout, size_t num_groups) {
  return header_bytes(layout, num_groups) + num_groups * code_bytes(layout);
}

// Rows of activations. Float layouts read `values`, the others the quantised form.
//
// Quantised rows come in chunks of up to kChunk rows, as even as possible. A chunk of M rows holds, block after block,
// kRowBlockBytes * M bytes: each field of a block for all M rows, so that offsets are constants of M. Fields by group
// are ordered [group][row].
struct RowsView {
  size_t num_rows;
  size_t num_inputs;  // a multiple of kGroup where quantised
  const float* values;
  size_t stride;     // between rows of `values`
  uint8_t* quantised;
  size_t chunk_bytes;  // from chunk to chunk
};

constexpr size_t kRowBlockBytes = 480;  // 468 are used; 512 would put a chunk's blocks into the same cache sets
// Where fields begin in a block, times M.
constexpr size_t kCodesAt = 0;             // int8 [8 groups][M][32]
constexpr size_t kScaleAt = 256;           // float [M]
constexpr size_t kPairSumsAt = 260;        // int16 [M][8 groups]: (sum of codes << lift) / 16, ties to even
constexpr size_t kLiftsAt = 276;           // int32 [8 groups][M]
constexpr size_t kStartsAt = 308;          // int32 [8 groups][M]: start_word of the group
constexpr size_t kHalfStartsAt = 340;      // int32 [8 groups][2][M]: start_word of each 16 inputs
constexpr size_t kLiftedSumsAt = 404;      // float [8 groups][M]: sum of codes << lift
constexpr size_t kHalfSumsAt = 436;        // int16 [8 groups][M][2]: sum of codes of each 16 inputs

static inline size_t num_chunks(size_t num_rows) { return (num_rows + kChunk - 1) / kChunk; }
// The first row of a chunk; of chunk num_chunks(num_rows): num_rows.
static inline size_t chunk_start(size_t num_rows, size_t chunk) {
  const size_t chunks = num_chunks(num_rows), extra = num_rows % chunks;
  return num_rows / chunks * chunk + (chunk < extra ? chunk : extra);
}

}  // namespace forerun
