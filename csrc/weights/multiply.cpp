#include "weights/multiply.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/table.h"

namespace forerun {

namespace {

constexpr size_t kMaxBatch = 8;                      // panels that take turns
constexpr size_t kPieceBytes = size_t(128) << 10;    // of weights: some microseconds of reading
constexpr size_t kPrefillBytes = size_t(128) << 10;  // of weights that stay in the second cache while chunks go by
constexpr size_t kNearBytes = size_t(20) << 10;      // of activations that stay in the first cache

size_t num_outputs(const Product& p) { return p.num_outputs ? p.num_outputs : p.matrix->num_outputs(); }
size_t num_panels(const Product& p) { return (num_outputs(p) + kPanel - 1) / kPanel; }

size_t clamp(size_t value, size_t low, size_t high) { return value < low ? low : value > high ? high : value; }

// How one matrix's panels are cut: pieces for the threads, and in them batches that one call multiplies.
struct Cut {
  size_t batch;
  size_t piece;  // panels
  size_t num_pieces;
};

Cut cut(const Product& product, const RowsView& x) {
  const MatrixView& matrix = product.matrix->view();
  const size_t bytes = matrix.panel_bytes, panels = num_panels(product), chunks = num_chunks(x.num_rows);
  Cut c;
  if (chunks > 1)
    c.batch = clamp(kPrefillBytes / bytes, 1, kMaxBatch);
  else
    c.batch = x.chunk_bytes > kNearBytes && needs_quantised(matrix.layout) ? 4 : 1;
  c.piece = chunks > 2 ? c.batch : clamp(kPieceBytes / bytes, 1, 64);
  c.piece = std::min((c.piece + c.batch - 1) / c.batch * c.batch, panels);
  c.batch = std::min(c.batch, c.piece);
  c.num_pieces = (panels + c.piece - 1) / c.piece;
  return c;
}

// A batch's products, [panels][M rows][16]: biases are added where there are any.
void add_biases(const Product& p, size_t first, size_t count, size_t M, float* results) {
  if (p.bias == nullptr) return;
  for (size_t i = 0; i < count; ++i) {
    const size_t output = kPanel * (first + i), lanes = std::min(kPanel, num_outputs(p) - output);
    for (size_t m = 0; m < M; ++m)
      for (size_t lane = 0; lane < lanes; ++lane) results[kPanel * (M * i + m) + lane] += p.bias[output + lane];
  }
}

void put(const Product& p, size_t first, size_t count, size_t row, size_t M, const float* results, bool add) {
  for (size_t i = 0; i < count; ++i) {
    const size_t output = kPanel * (first + i), lanes = std::min(kPanel, num_outputs(p) - output);
    for (size_t m = 0; m < M; ++m) {
      const float* from = results + kPanel * (M * i + m);
      float* out = p.out + (row + m) * p.stride + output;
      for (size_t lane = 0; lane < lanes; ++lane) out[lane] = add ? out[lane] + from[lane] : from[lane];
    }
  }
}

void check(const std::vector<Product>& products, const RowsView& x, Epilogue epilogue) {
  for (const Product& p : products) {
    if (p.matrix->num_inputs() != x.num_inputs)
      throw std::invalid_argument("a matrix of " + std::to_string(p.matrix->num_inputs()) +
                                  " inputs was given rows of " + std::to_string(x.num_inputs));
    if (needs_quantised(p.matrix->view().layout) && x.quantised == nullptr)
      throw std::invalid_argument("a quantised matrix was given rows that were not quantised");
  }
  if (epilogue == Epilogue::kSiluMultiply &&
      (products.size() != 2 || num_outputs(products[0]) != num_outputs(products[1])))
    throw std::invalid_argument("silu(gate) * up needs exactly two matrices of as many outputs");
}

}  // namespace

Activations::Activations(size_t max_rows, size_t max_inputs)
    : block_((max_rows + kChunk - 1) / kChunk * kChunk * ((max_inputs + kBlock - 1) / kBlock) * kRowBlockBytes),
      max_rows_(max_rows) {}

void Activations::set(const float* values, size_t stride, size_t num_rows, size_t num_inputs, bool quantised,
                      Pool& pool, const Kernels& kernels) {
  if (num_rows == 0 || num_rows > max_rows_)
    throw std::invalid_argument("activations of " + std::to_string(num_rows) + " rows: room is for " +
                                std::to_string(max_rows_));
  view_ = RowsView{num_rows, num_inputs, values, stride, nullptr, 0};
  if (!quantised) return;
  const size_t chunks = num_chunks(num_rows), blocks = (num_inputs + kBlock - 1) / kBlock;
  view_.chunk_bytes = (num_rows + chunks - 1) / chunks * blocks * kRowBlockBytes;
  if (num_inputs % kGroup != 0)
    throw std::invalid_argument("rows of " + std::to_string(num_inputs) + " values cannot be quantised by 32");
  if (chunks * view_.chunk_bytes > block_.size())
    throw std::invalid_argument("activations of " + std::to_string(num_inputs) + " values a row: there is no room");
  view_.quantised = block_.data();
  if (num_rows * num_inputs < 16384) {
    kernels.quantise_rows(values, stride, view_, 0, num_rows);
  } else {
    pool.run(int64_t(num_rows), [&](int64_t row) {
      kernels.quantise_rows(values + size_t(row) * stride, stride, view_, size_t(row), 1);
    });
  }
}

void multiply(const std::vector<Product>& products, const Activations& activations, Epilogue epilogue, Pool& pool,
              const Kernels& kernels) {
  const RowsView& x = activations.view();
  check(products, x, epilogue);
  const bool paired = epilogue == Epilogue::kSiluMultiply;
  std::vector<Cut> cuts;
  int64_t num_pieces = 0;
  for (const Product& p : products) {
    cuts.push_back(cut(p, x));
    num_pieces += int64_t(cuts.back().num_pieces);
    if (paired) break;  // the second is cut as the first
  }
  pool.run(num_pieces, [&](int64_t piece_of_all) {
    alignas(64) float results[2][kMaxBatch * kChunk * kPanel];
    size_t piece = size_t(piece_of_all), which = 0;
    while (piece >= cuts[which].num_pieces) piece -= cuts[which++].num_pieces;
    const Cut& c = cuts[which];
    const Product& product = products[which];
    const size_t end = std::min(piece * c.piece + c.piece, num_panels(product));
    for (size_t first = piece * c.piece; first < end; first += c.batch) {
      const size_t count = std::min(c.batch, end - first);
      for (size_t chunk = 0; chunk < num_chunks(x.num_rows); ++chunk) {
        const size_t row = chunk_start(x.num_rows, chunk), M = chunk_start(x.num_rows, chunk + 1) - row;
        kernels.multiply_panels(product.matrix->view(), first, count, x, chunk, results[0]);
        add_biases(product, first, count, M, results[0]);
        if (paired) {
          kernels.multiply_panels(products[1].matrix->view(), first, count, x, chunk, results[1]);
          add_biases(products[1], first, count, M, results[1]);
          kernels.silu_multiply(results[0], results[1], kPanel * M * count, results[0]);
        }
        put(product, first, count, row, M, results[0], epilogue == Epilogue::kAdd);
      }
    }
  });
}

}  // namespace forerun
