// What the matrix kernels see: repacked weights, and rows of activations quantised for them.
//
// Weights. Outputs come in panels of 16, one per lane. A panel holds its inputs block after block, each block's scales
// first (so that they are there when its codes arrive), in one forward stream. A matrix whose number of outputs is no
// multiple of 16 is filled up with zeros.
//
// Activations. A row is cut into blocks of up to 256 inputs (the last one may be shorter: K = 896 is 3.5 blocks) and
// groups of 32. Each block has one float scale, the largest magnitude / 127 / 2^7, and each group is stored as int8
// steps of scale * 2^(7 - shift), with the largest shift in 0 .. 7 that its own magnitude allows: outliers cost their
// neighbours' groups nothing, and putting a group's dot product on the block's scale is an exact integer shift left by
// (7 - shift), called `lift` below. A row with a NaN or an infinity gets NaN scales, so that it stays visible.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

constexpr size_t kPanel = 16;   // outputs of one panel
constexpr size_t kGroup = 32;   // inputs that share an activation step
constexpr size_t kBlock = 256;  // inputs that share an activation scale
constexpr size_t kChunk = 8;    // rows that one pass over a panel multiplies at most

// How a matrix is laid out in memory; the formulas give a weight from its code.
enum class Layout : uint8_t {
  kFloat32,   // as stored
  kFloat16,
  kBFloat16,
  kQ4K,       // d * sc * code - dmin * mn: 4 bits, 6-bit sc and mn per 32, float16 d and dmin per 256
  kQ6K,       // d * sc * (code - 32): 6 bits, int8 sc per 16, float16 d per 256
  kQ4_0,      // d * (code - 8): 4 bits, float16 d per 32
  kQ4_1,      // d * code + m: 4 bits, float16 d and m per 32
  kQ5_0,      // d * (code - 16): 5 bits, float16 d per 32
  kQ8_0,      // d * code: int8, float16 d per 32
};

struct MatrixView {
  Layout layout;
  size_t num_outputs;
  size_t num_inputs;
  size_t panel_bytes;
  const uint8_t* data;
};

// Rows of activations. Float layouts read `values`, the others the quantised form. Quantised rows come in chunks of
// up to kChunk rows, so that a chunk's 32 codes of one group lie side by side.
struct RowsView {
  size_t num_rows;
  size_t num_inputs;  // a multiple of kGroup where quantised
  const float* values;
  size_t stride;     // between rows of `values`
  uint8_t* quantised;
  size_t chunk_bytes;
};

}  // namespace forerun
