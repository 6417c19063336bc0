#include "weights/matrix.h"

#include <cstring>
#include <stdexcept>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

size_t panel_bytes(Layout layout, size_t num_inputs) {
  size_t bytes = 0;
  if (!needs_quantised(layout)) {
    bytes = num_inputs * kPanel * (layout == Layout::kFloat32 ? 4 : 2);
  } else {
    const size_t num_groups = num_inputs / kGroup, rest = num_groups % kGroupsOfBlock;
    bytes = num_groups / kGroupsOfBlock * tile_bytes(layout, kGroupsOfBlock) + (rest ? tile_bytes(layout, rest) : 0);
  }
  return (bytes + 63) / 64 * 64;
}

// Float weights of a row to one lane of a panel, [num_inputs][16].
template <class T>
void write_lane(const uint8_t* row, size_t num_inputs, size_t lane, uint8_t* panel) {
  for (size_t k = 0; k < num_inputs; ++k)
    std::memcpy(panel + (kPanel * k + lane) * sizeof(T), row + k * sizeof(T), sizeof(T));
}

// One stored row to a lane of a panel, tile after tile.
void pack_row(Stored stored, const uint8_t* row, size_t num_inputs, size_t lane, uint8_t* panel) {
  const Layout layout = layout_of(stored);
  Codes codes;
  for (size_t left = num_inputs / kGroup; left > 0;) {
    const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    read_stored(layout, row, count, codes);
    write_tile(layout, codes, count, lane, panel);
    row += stored_bytes(layout, count);
    panel += tile_bytes(layout, count);
    left -= count;
  }
}

void requantise_row(Stored stored, const uint8_t* row, size_t num_inputs, size_t lane, uint8_t* panel, float* values) {
  decode_row(stored, row, num_inputs, values);
  Codes codes;
  for (size_t left = num_inputs / kGroup; left > 0;) {
    const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    for (size_t g = 0; g < count; ++g) quantise_group(values + kGroup * g, g, codes);
    write_tile(Layout::kQ4_0, codes, count, lane, panel);
    values += count * kGroup;
    panel += tile_bytes(Layout::kQ4_0, count);
    left -= count;
  }
}

// Calls body(panel, stored row, output's lane) for all outputs.
template <class Body>
void for_all_rows(Block& block, const MatrixView& view, const uint8_t* data, size_t row_bytes, const uint32_t* order,
                  Pool& pool, const Body& body) {
  const size_t num_panels = (view.num_outputs + kPanel - 1) / kPanel;
  pool.run(int64_t(num_panels), [&](int64_t panel) {
    const size_t first = size_t(panel) * kPanel;
    for (size_t lane = 0; lane < kPanel && first + lane < view.num_outputs; ++lane) {
      const size_t from = order == nullptr ? first + lane : order[first + lane];
      body(block.data() + size_t(panel) * view.panel_bytes, data + from * row_bytes, lane);
    }
  });
}

MatrixView view_of(Layout layout, size_t num_outputs, size_t num_inputs) {
  if (num_outputs == 0 || num_inputs == 0)
    throw std::invalid_argument("a matrix of " + std::to_string(num_outputs) + " x " + std::to_string(num_inputs) +
                                " weights is empty");
  return MatrixView{layout, num_outputs, num_inputs, panel_bytes(layout, num_inputs), nullptr};
}

size_t size_of(const MatrixView& view) { return (view.num_outputs + kPanel - 1) / kPanel * view.panel_bytes; }

}  // namespace

bool needs_quantised(Layout layout) {
  return layout != Layout::kFloat32 && layout != Layout::kFloat16 && layout != Layout::kBFloat16;
}

Matrix Matrix::pack(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs, const uint32_t* order,
                    Pool& pool) {
  const size_t row_bytes = stored_row_bytes(stored, num_inputs);
  Matrix matrix;
  matrix.view_ = view_of(layout_of(stored), num_outputs, num_inputs);
  matrix.block_ = Block(size_of(matrix.view_));
  matrix.view_.data = matrix.block_.data();
  for_all_rows(matrix.block_, matrix.view_, data, row_bytes, order, pool,
               [&](uint8_t* panel, const uint8_t* row, size_t lane) {
                 if (stored == Stored::kF32)
                   write_lane<uint32_t>(row, num_inputs, lane, panel);
                 else if (stored == Stored::kF16 || stored == Stored::kBF16)
                   write_lane<uint16_t>(row, num_inputs, lane, panel);
                 else
                   pack_row(stored, row, num_inputs, lane, panel);
               });
  return matrix;
}

Matrix Matrix::requantise(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                          const uint32_t* order, Pool& pool) {
  const size_t row_bytes = stored_row_bytes(stored, num_inputs);
  if (num_inputs % kGroup != 0)
    throw std::invalid_argument("weights are rounded anew by 32 but a row has " + std::to_string(num_inputs));
  Matrix matrix;
  matrix.view_ = view_of(Layout::kQ4_0, num_outputs, num_inputs);
  matrix.block_ = Block(size_of(matrix.view_));
  matrix.view_.data = matrix.block_.data();
  for_all_rows(matrix.block_, matrix.view_, data, row_bytes, order, pool,
               [&](uint8_t* panel, const uint8_t* row, size_t lane) {
                 std::vector<float> values(num_inputs);
                 requantise_row(stored, row, num_inputs, lane, panel, values.data());
               });
  return matrix;
}

void Matrix::row(size_t output, float* to) const {
  const Layout layout = view_.layout;
  const uint8_t* panel = view_.data + output / kPanel * view_.panel_bytes;
  const size_t lane = output % kPanel;
  if (!needs_quantised(layout)) {
    const size_t size = layout == Layout::kFloat32 ? 4 : 2;
    for (size_t k = 0; k < view_.num_inputs; ++k) {
      const uint8_t* p = panel + (kPanel * k + lane) * size;
      if (layout == Layout::kFloat32) {
        std::memcpy(to + k, p, 4);
      } else {
        uint16_t half;
        std::memcpy(&half, p, 2);
        to[k] = layout == Layout::kFloat16 ? half_to_float(half) : bf16_to_float(half);
      }
    }
    return;
  }
  Codes codes;
  for (size_t left = view_.num_inputs / kGroup; left > 0;) {
    const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    read_tile(layout, panel, count, lane, codes);
    decode(layout, codes, count, to);
    panel += tile_bytes(layout, count);
    to += count * kGroup;
    left -= count;
  }
}

}  // namespace forerun
