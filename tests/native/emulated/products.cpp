// Products with matrices of every format, and the quantised activations that they read.
#include <cmath>

#include "kernels/table.h"
#include "records.h"
#include "weights/matrix.h"
#include "weights/multiply.h"
#include "weights/packed.h"

namespace emulated {

using namespace forerun;
using std::to_string;

namespace {

// Kinds: 0 normal, 1 at the ends of the range, 2 outliers, 3 of every magnitude, with NaN and infinity.
std::vector<float> random_rows(size_t num_rows, size_t K, int kind) {
  std::vector<float> x(num_rows * K);
  for (size_t i = 0; i < x.size(); ++i) {
    float v = normal();
    if (kind == 1) v = bits64() & 1 || i / K % 3 == 1 ? 127.0f : -127.0f;
    if (kind == 2 && below(40) == 0) v *= 300;
    if (kind == 2 && i % K < K / 2) v *= 1e-3f;
    if (kind == 3) v *= std::ldexp(1.0f, int(below(200)) - 100);
    x[i] = v;
  }
  if (kind == 3 && num_rows > 2) {
    x[K + below(K)] = NAN;
    x[2 * K + below(K)] = INFINITY;
  }
  return x;
}

// What all sets keep alike of quantised rows: start_word's words (products_portable.h) are each set's own.
void put_quantised(const std::string& name, const RowsView& x) {
  std::vector<uint8_t> all;
  auto take = [&](const void* p, size_t n) {
    all.insert(all.end(), static_cast<const uint8_t*>(p), static_cast<const uint8_t*>(p) + n);
  };
  for (size_t chunk = 0; chunk < num_chunks(x.num_rows); ++chunk) {
    const size_t M = chunk_start(x.num_rows, chunk + 1) - chunk_start(x.num_rows, chunk);
    const uint8_t* block = x.quantised + chunk * x.chunk_bytes;
    for (size_t left = x.num_inputs / kGroup; left > 0; block += kRowBlockBytes * M) {
      const size_t num_groups = left < kGroupsOfBlock ? left : kGroupsOfBlock;
      left -= num_groups;
      take(block, 32 * M * num_groups);
      for (size_t m = 0; m < M; ++m) {
        float scale = reinterpret_cast<const float*>(block + kScaleAt * M)[m];
        if (scale != scale) scale = -1;
        take(&scale, 4);
      }
      take(block + kPairSumsAt * M, 16 * M);
      take(block + kLiftsAt * M, 4 * M * num_groups);
      take(block + kLiftedSumsAt * M, 4 * M * num_groups);
      take(block + kHalfSumsAt * M, 4 * M * num_groups);
    }
  }
  put(name, all.data(), all.size());
}

void multiply_rows(const Format& format, size_t K, int kind, Pool& pool) {
  const size_t outputs = K == 256 ? 40 : K == 1536 ? 17 : 21;
  const auto first_stored = random_stored(format, outputs, K, kind == 3 ? 2 : kind);
  const auto second_stored = random_stored(format, outputs, K, 0);
  const Matrix a = Matrix::pack(format.stored, first_stored.data(), outputs, K, nullptr, pool);
  const Matrix b = Matrix::pack(format.stored, second_stored.data(), outputs, K, nullptr, pool);
  const std::vector<float> x = random_rows(40, K, kind), bias = normals(outputs);
  const bool quantised = needs_quantised(a.view().layout);
  const size_t most_rows = kind > 0 || K < 256 ? 9 : 33;
  for (size_t num_rows = 1; num_rows <= most_rows; num_rows += num_rows < 17 ? 1 : 8) {
    const std::string name = std::string(format.name) + " K" + to_string(K) + " kind" + to_string(kind) + " rows" +
                             to_string(num_rows);
    Activations activations(num_rows, K);
    activations.set(&x[below(40 - num_rows + 1) * K], K, num_rows, K, quantised, pool);
    if (quantised) put_quantised(name + " quantised", activations.view());
    std::vector<float> out(num_rows * outputs, 0.5f);
    multiply({{&a, num_rows % 2 ? bias.data() : nullptr, out.data(), outputs}}, activations,
             num_rows % 3 ? Epilogue::kStore : Epilogue::kAdd, pool);
    put_floats(name, out.data(), out.size());
    if (num_rows % 4 != 1) continue;
    multiply({{&a, nullptr, out.data(), outputs}, {&b, nullptr, nullptr, outputs}}, activations,
             Epilogue::kSiluMultiply, pool);
    put_floats(name + " silu", out.data(), out.size());
  }
}

// More panels than one call takes, as stored and rounded anew.
void multiply_many(const Format& format, Pool& pool) {
  const size_t K = 256, outputs = 16 * 9 + 5, num_rows = 19;
  const auto stored = random_stored(format, outputs, K, 0);
  const Matrix as_stored = Matrix::pack(format.stored, stored.data(), outputs, K, nullptr, pool);
  const Matrix rounded = Matrix::round(Rounding::kQ4, format.stored, stored.data(), outputs, K, nullptr, pool);
  const std::vector<float> x = random_rows(num_rows, K, 0);
  for (const Matrix* matrix : {&as_stored, &rounded}) {
    Activations activations(num_rows, K);
    activations.set(x.data(), K, num_rows, K, needs_quantised(matrix->view().layout), pool);
    std::vector<float> out(num_rows * outputs);
    multiply({{matrix, nullptr, out.data(), outputs}}, activations, Epilogue::kStore, pool);
    put_floats(std::string(format.name) + (matrix == &as_stored ? " many" : " requantised"), out.data(), out.size());
  }
}

}  // namespace

void products(Pool& pool) {
  for (const Format& format : formats()) {
    for (size_t K : {256, 32, 96, 576, 896, 1536})
      for (int kind = 0; kind < 4; ++kind)
        if (K % format.inputs == 0 && (kind == 0 || K == 256 || K == 896 || (K == 1536 && format.inputs == 256)))
          multiply_rows(format, K, kind, pool);
    multiply_many(format, pool);
  }
}

}  // namespace emulated
