#include "weights/matrix.h"

#include <cstring>
#include <mutex>
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
  if (stored == Stored::kF32) return write_lane<uint32_t>(row, num_inputs, lane, panel);
  if (stored == Stored::kF16 || stored == Stored::kBF16) return write_lane<uint16_t>(row, num_inputs, lane, panel);
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

// The rows of a panel, rounded anew.
void requantise_panel(Stored stored, const std::vector<const uint8_t*>& rows, size_t num_inputs, uint8_t* panel) {
  std::vector<float> row(num_inputs), lanes(num_inputs * kPanel);  // [num_inputs][16]
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    decode_row(stored, rows[lane], num_inputs, row.data());
    for (size_t k = 0; k < num_inputs; ++k) lanes[kPanel * k + lane] = row[k];
  }
  float* weights = lanes.data();
  for (size_t left = num_inputs / kGroup; left > 0;) {
    const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    requantise_block(weights, count, rows.size(), panel);
    weights += count * kGroup * kPanel;
    panel += tile_bytes(Layout::kQ4K, count);
    left -= count;
  }
}

// One stored row to a lane of a panel of kQ8_0 or kBFloat16, rounded.
void round_row(Layout layout, Stored stored, const uint8_t* row, size_t num_inputs, size_t lane, uint8_t* panel) {
  std::vector<float> weights(num_inputs);
  decode_row(stored, row, num_inputs, weights.data());
  if (layout == Layout::kBFloat16) {
    std::vector<uint16_t> rounded(num_inputs);
    for (size_t k = 0; k < num_inputs; ++k) rounded[k] = float_to_bf16(weights[k]);
    return write_lane<uint16_t>(reinterpret_cast<const uint8_t*>(rounded.data()), num_inputs, lane, panel);
  }
  Codes codes;
  const float* from = weights.data();
  for (size_t left = num_inputs / kGroup; left > 0;) {
    const size_t count = left < kGroupsOfBlock ? left : kGroupsOfBlock;
    round_to_q8_0(from, count, codes);
    write_tile(layout, codes, count, lane, panel);
    from += count * kGroup;
    panel += tile_bytes(layout, count);
    left -= count;
  }
}

MatrixView view_of(Layout layout, size_t num_outputs, size_t num_inputs) {
  if (num_outputs == 0 || num_inputs == 0)
    throw std::invalid_argument("a matrix of " + std::to_string(num_outputs) + " x " + std::to_string(num_inputs) +
                                " weights is empty");
  return MatrixView{layout, num_outputs, num_inputs, panel_bytes(layout, num_inputs), nullptr};
}

// Room for weights, zeroed: large matrices have their own, small ones share a block, which lives as long as any does.
constexpr size_t kSharedBytes = size_t(32) << 20;

std::shared_ptr<Block> find_room(size_t num_bytes, uint8_t*& data) {
  static std::mutex lock;
  static std::weak_ptr<Block> shared;
  static size_t used = 0;
  if (num_bytes >= kSharedBytes / 2) {
    auto own = std::make_shared<Block>(num_bytes);
    data = own->data();
    return own;
  }
  std::lock_guard<std::mutex> guard(lock);
  std::shared_ptr<Block> block = shared.lock();
  if (!block || used + num_bytes > block->size()) {
    block = std::make_shared<Block>(kSharedBytes);
    shared = block;
    used = 0;
  }
  data = block->data() + used;
  used += num_bytes;  // panels are whole cache lines
  return block;
}

}  // namespace

bool needs_quantised(Layout layout) {
  return layout != Layout::kFloat32 && layout != Layout::kFloat16 && layout != Layout::kBFloat16;
}

Matrix Matrix::pack(Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs, const uint32_t* order,
                    Pool& pool) {
  return round(Rounding::kNone, stored, data, num_outputs, num_inputs, order, pool);
}

Matrix Matrix::round(Rounding rounding, Stored stored, const uint8_t* data, size_t num_outputs, size_t num_inputs,
                     const uint32_t* order, Pool& pool) {
  Matrix matrix = room(stored, num_outputs, num_inputs, rounding);
  matrix.set_rows(0, num_outputs, data, order, pool);
  return matrix;
}

Matrix Matrix::room(Stored stored, size_t num_outputs, size_t num_inputs, Rounding rounding) {
  stored_row_bytes(stored, num_inputs);  // refuses what does not fit
  Layout layout = layout_of(stored);
  const Layout rounded = rounding == Rounding::kQ4     ? Layout::kQ4K
                         : rounding == Rounding::kQ8_0 ? Layout::kQ8_0
                         : rounding == Rounding::kBF16 ? Layout::kBFloat16
                                                       : layout;
  const bool has_4_bits = needs_quantised(layout) && code_bits(layout) <= 4;  // at most
  if (rounded == layout || (rounding == Rounding::kQ4 && has_4_bits)) rounding = Rounding::kNone;
  if (rounding != Rounding::kNone) layout = rounded;
  if (rounding == Rounding::kQ4 && num_inputs % kGroup != 0)
    throw std::invalid_argument("weights are rounded anew by 32 but a row has " + std::to_string(num_inputs));
  if (rounding == Rounding::kQ8_0 && num_inputs % kGroup != 0)
    throw std::invalid_argument("weights are rounded to Q8_0 by 32 but a row has " + std::to_string(num_inputs));
  Matrix matrix;
  matrix.stored_ = stored;
  matrix.rounding_ = rounding;
  matrix.view_ = view_of(layout, num_outputs, num_inputs);
  uint8_t* room = nullptr;
  matrix.block_ = find_room(matrix.num_bytes(), room);
  matrix.view_.data = room;
  return matrix;
}

void Matrix::set_rows(size_t first, size_t count, const uint8_t* data, const uint32_t* order, Pool& pool) {
  const size_t last = first + count, num_inputs = view_.num_inputs;
  if (!block_) throw std::invalid_argument("packed weights that were adopted cannot be set");
  if (first % kPanel != 0 || (last % kPanel != 0 && last != view_.num_outputs) || last > view_.num_outputs)
    throw std::invalid_argument("outputs " + std::to_string(first) + " to " + std::to_string(last) + " of " +
                                std::to_string(view_.num_outputs) + " are not whole panels");
  const size_t row_bytes = stored_row_bytes(stored_, num_inputs);
  uint8_t* room = block_->data() + (view_.data - block_->data());  // view_.data, to be written to
  pool.run(int64_t((count + kPanel - 1) / kPanel), [&](int64_t index) {
    std::vector<const uint8_t*> rows;
    for (size_t i = size_t(index) * kPanel; i < count && rows.size() < kPanel; ++i)
      rows.push_back(data + (order == nullptr ? i : order[i]) * row_bytes);
    uint8_t* panel = room + (first / kPanel + size_t(index)) * view_.panel_bytes;
    if (rounding_ == Rounding::kQ4) return requantise_panel(stored_, rows, num_inputs, panel);
    for (size_t lane = 0; lane < rows.size(); ++lane) {
      if (rounding_ == Rounding::kNone) {
        pack_row(stored_, rows[lane], num_inputs, lane, panel);
      } else {
        round_row(view_.layout, stored_, rows[lane], num_inputs, lane, panel);
      }
    }
  });
}

Matrix Matrix::adopt(std::shared_ptr<const void> owner, const uint8_t* data, size_t num_bytes, Layout layout,
                     size_t num_outputs, size_t num_inputs) {
  if (num_inputs == 0 || num_inputs > SIZE_MAX / 256 || (needs_quantised(layout) && num_inputs % kGroup != 0))
    throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " weights cannot be laid out as " +
                                name_of(layout));
  Matrix matrix;
  matrix.view_ = view_of(layout, num_outputs, num_inputs);
  const size_t num_panels = num_outputs / kPanel + (num_outputs % kPanel != 0);
  if (num_panels == 0 || num_bytes / num_panels != matrix.view_.panel_bytes || num_bytes % num_panels != 0)
    throw std::invalid_argument(std::to_string(num_bytes) + " bytes are not those of a matrix of " +
                                std::to_string(num_outputs) + " x " + std::to_string(num_inputs));
  matrix.view_.data = data;
  matrix.owner_ = std::move(owner);
  return matrix;
}

size_t Matrix::num_bytes() const { return (view_.num_outputs + kPanel - 1) / kPanel * view_.panel_bytes; }

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
