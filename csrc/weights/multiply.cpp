#include "weights/multiply.h"

#include <algorithm>
#include <stdexcept>

#include "kernels/table.h"

namespace forerun {

namespace {

constexpr size_t kMaxBatch = 8;                    // panels that take turns with a chunk of rows
constexpr size_t kMostBytes = size_t(1) << 20;     // of weights in one piece of a thread's work
constexpr size_t kLeastBytes = size_t(24) << 10;   // a microsecond of reading
constexpr size_t kBatchBytes = size_t(192) << 10;  // of weights that stay in the second cache while chunks go by
constexpr size_t kWorthSharing = 8192;             // values that several threads quantise sooner than one

size_t num_outputs(const Product& p) { return p.num_outputs ? p.num_outputs : p.matrix->num_outputs(); }
size_t num_panels(const Product& p) { return (num_outputs(p) + kPanel - 1) / kPanel; }

bool is_paired(Epilogue epilogue) {
  return epilogue == Epilogue::kSiluMultiply || epilogue == Epilogue::kGeluTanhMultiply;
}

size_t clamp(size_t value, size_t low, size_t high) { return value < low ? low : value > high ? high : value; }

// What one thread takes at a time: panels [first, first + count) of a product.
struct Piece {
  size_t product;
  size_t first;
  size_t count;
};

// Panels that one call multiplies. One chunk of rows reads panel after panel, in one stream; for more chunks, some
// panels wait in the second cache, so that chunks are read less often.
size_t batch_of(const Matrix& matrix, const RowsView& x) {
  return num_chunks(x.num_rows) > 2 ? clamp(kBatchBytes / matrix.view().panel_bytes, 1, kMaxBatch) : 1;
}

// Long pieces first, for long streams, and shorter ones towards the end, where a thread that was held up is waited for.
std::vector<Piece> cut(const std::vector<Product>& products, size_t num_products, const RowsView& x, int num_threads) {
  size_t left = 0;
  for (size_t i = 0; i < num_products; ++i) left += num_panels(products[i]) * products[i].matrix->view().panel_bytes;
  std::vector<Piece> pieces;
  pieces.reserve(64);
  for (size_t i = 0; i < num_products; ++i) {
    const size_t bytes = products[i].matrix->view().panel_bytes, panels = num_panels(products[i]);
    const size_t most = num_chunks(x.num_rows) > 2 ? batch_of(*products[i].matrix, x) * bytes : kMostBytes;
    for (size_t first = 0; first < panels;) {
      const size_t wanted = clamp(left / size_t(2 * num_threads), std::min(kLeastBytes, most), most);
      const size_t count = clamp(wanted / bytes, 1, panels - first);
      pieces.push_back({i, first, count});
      first += count;
      left -= count * bytes;
    }
  }
  return pieces;
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
  if (is_paired(epilogue) && (products.size() != 2 || num_outputs(products[0]) != num_outputs(products[1])))
    throw std::invalid_argument("f(gate) * up needs exactly two matrices of as many outputs");
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
  if (num_rows * num_inputs < kWorthSharing) {
    kernels.quantise_rows(values, stride, view_, 0, num_rows);
  } else {  // rows by rows, or many at a time
    const size_t step = num_rows > 64 ? kChunk : 1;
    pool.run(int64_t((num_rows + step - 1) / step), [&](int64_t piece) {
      const size_t row = size_t(piece) * step;
      kernels.quantise_rows(values + row * stride, stride, view_, row, std::min(step, num_rows - row));
    });
  }
}

void multiply(const std::vector<Product>& products, const Activations& activations, Epilogue epilogue, Pool& pool,
              const Kernels& kernels) {
  const RowsView& x = activations.view();
  check(products, x, epilogue);
  const bool paired = is_paired(epilogue);
  const auto activate =
      epilogue == Epilogue::kGeluTanhMultiply ? kernels.gelu_tanh_multiply : kernels.silu_multiply;
  const std::vector<Piece> pieces = cut(products, paired ? 1 : products.size(), x, pool.num_threads());
  pool.run(int64_t(pieces.size()), [&](int64_t index) {
    alignas(64) float results[2][kMaxBatch * kChunk * kPanel];
    const Piece& piece = pieces[size_t(index)];
    const Product& product = products[piece.product];
    const size_t batch = batch_of(*product.matrix, x), end = piece.first + piece.count;
    for (size_t first = piece.first; first < end; first += batch) {
      const size_t count = std::min(batch, end - first);
      for (size_t chunk = 0; chunk < num_chunks(x.num_rows); ++chunk) {
        const size_t row = chunk_start(x.num_rows, chunk), M = chunk_start(x.num_rows, chunk + 1) - row;
        kernels.multiply_panels(product.matrix->view(), first, count, x, chunk, results[0]);
        add_biases(product, first, count, M, results[0]);
        if (paired) {
          kernels.multiply_panels(products[1].matrix->view(), first, count, x, chunk, results[1]);
          add_biases(products[1], first, count, M, results[1]);
          activate(results[0], results[1], kPanel * M * count, results[0]);
        }
        put(product, first, count, row, M, results[0], epilogue == Epilogue::kAdd);
      }
    }
  });
}

}  // namespace forerun
