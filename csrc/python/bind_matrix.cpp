// Repacked matrices, which load.py fills piece by piece; products, for tests and measurements.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

#include "core/half.h"
#include "kernels/table.h"
#include "python/bind.h"
#include "weights/codes.h"
#include "weights/multiply.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Vector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Order = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, float, nb::ndim<2>>;

void check_bytes(Stored stored, const Bytes& data, size_t num_inputs) {
  const size_t expected = stored_row_bytes(stored, num_inputs);
  if (data.shape(1) != expected)
    throw std::invalid_argument("rows of " + std::to_string(data.shape(1)) + " bytes were given; " +
                                std::to_string(num_inputs) + " weights take " + std::to_string(expected));
}

void check_order(const uint32_t* rows, size_t count, size_t num_rows) {
  for (size_t i = 0; rows != nullptr && i < count; ++i)
    if (rows[i] >= num_rows)
      throw std::invalid_argument("order names row " + std::to_string(rows[i]) + " of " + std::to_string(num_rows));
}

Matrix pack(const std::string& name, const Bytes& data, size_t num_inputs, const std::optional<Order>& order,
            const std::string& rounding) {
  const Rounding how = rounding_named(rounding);
  const Stored stored = stored_named(name);
  check_bytes(stored, data, num_inputs);
  const uint32_t* rows = order ? order->data() : nullptr;
  const size_t num_outputs = order ? order->shape(0) : data.shape(0);
  check_order(rows, num_outputs, data.shape(0));
  nb::gil_scoped_release release;
  return Matrix::round(how, stored, data.data(), num_outputs, num_inputs, rows, Pool::shared());
}

// For weights whose rows come in pieces: load.py reads a file so.
void make_room(Matrix* self, const std::string& name, size_t num_outputs, size_t num_inputs,
               const std::string& rounding) {
  constexpr size_t kMost = size_t(1) << 31;
  if (num_outputs > kMost || num_inputs > kMost)
    throw std::invalid_argument("a matrix of " + std::to_string(num_outputs) + " x " + std::to_string(num_inputs) +
                                " weights is too large");
  new (self) Matrix(Matrix::room(stored_named(name), num_outputs, num_inputs, rounding_named(rounding)));
}

void set_rows(Matrix& matrix, size_t first, const Bytes& data, const std::optional<Order>& order) {
  check_bytes(matrix.stored(), data, matrix.num_inputs());
  const uint32_t* rows = order ? order->data() : nullptr;
  const size_t count = order ? order->shape(0) : data.shape(0);
  if (count > matrix.num_outputs() || first > matrix.num_outputs() - count)
    throw std::invalid_argument("a matrix of " + std::to_string(matrix.num_outputs()) + " outputs has none at " +
                                std::to_string(first) + " + " + std::to_string(count));
  check_order(rows, count, data.shape(0));
  nb::gil_scoped_release release;
  matrix.set_rows(first, count, data.data(), rows, Pool::shared());
}

const Kernels& kernels_of(const std::optional<std::string>& isa) {
  if (!isa) return kernels();
  const Kernels* named = kernels_named(isa->c_str());
  if (named == nullptr) throw std::invalid_argument("this machine does not run the instruction set '" + *isa + "'");
  return *named;
}

Epilogue epilogue_named(const std::string& name) {
  if (name == "store") return Epilogue::kStore;
  if (name == "add") return Epilogue::kAdd;
  if (name == "silu_multiply") return Epilogue::kSiluMultiply;
  if (name == "gelu_tanh_multiply") return Epilogue::kGeluTanhMultiply;
  throw std::invalid_argument("'" + name + "' is no epilogue: store, add, silu_multiply, gelu_tanh_multiply");
}

std::vector<Result> multiply_all(const std::vector<const Matrix*>& matrices, const Floats& x,
                                 const std::vector<std::optional<Vector>>& biases, const std::string& epilogue,
                                 const std::vector<Floats>& start, const std::optional<std::string>& isa,
                                 std::optional<int> threads) {
  const Kernels& chosen = kernels_of(isa);
  const Epilogue how = epilogue_named(epilogue);
  const size_t rows = x.shape(0), num_results = how == Epilogue::kStore || how == Epilogue::kAdd ? matrices.size() : 1;
  std::vector<Product> products;
  std::vector<Result> results;
  bool quantised = false;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const size_t outputs = matrices[i]->num_outputs();
    const bool has_bias = i < biases.size() && biases[i].has_value();
    if (has_bias && biases[i]->shape(0) != outputs) throw std::invalid_argument("a bias does not fit its matrix");
    float* out = nullptr;
    if (i < num_results) {
      results.push_back(make_array<float, 2>({rows, outputs}));
      out = results.back().data();
    }
    if (how == Epilogue::kAdd) {
      if (i >= start.size() || start[i].shape(0) != rows || start[i].shape(1) != outputs)
        throw std::invalid_argument("what the products are added to does not fit them");
      std::copy(start[i].data(), start[i].data() + rows * outputs, out);
    }
    products.push_back({matrices[i], has_bias ? biases[i]->data() : nullptr, out, outputs});
    quantised = quantised || needs_quantised(matrices[i]->view().layout);
  }
  {
    nb::gil_scoped_release release;
    std::optional<Pool> own;
    if (threads) own.emplace(*threads);
    Pool& pool = own ? *own : Pool::shared();
    Activations activations(rows, x.shape(1));
    activations.set(x.data(), x.shape(1), rows, x.shape(1), quantised, pool, chosen);
    multiply(products, activations, how, pool, chosen);
  }
  return results;
}

using Flat = nb::ndarray<nb::numpy, float, nb::ndim<1>>;

// One of the small kernels (kernels/layers.h), for tests of the lanes they are written in.
Flat apply_layer(const std::string& name, const Vector& x, const Vector& y, const std::optional<std::string>& isa) {
  const Kernels& chosen = kernels_of(isa);
  const size_t size = x.shape(0);
  if (y.shape(0) != size) throw std::invalid_argument("x and y differ in size");
  Flat result = make_array<float, 1>({size});
  float* data = result.data();
  if (name == "silu_multiply") {
    chosen.silu_multiply(x.data(), y.data(), size, data);
  } else if (name == "gelu_tanh_multiply") {
    chosen.gelu_tanh_multiply(x.data(), y.data(), size, data);
  } else if (name == "add_scaled") {  // x to y, times y's first
    std::copy(y.data(), y.data() + size, data);
    chosen.add_scaled(x.data(), size ? y.data()[0] : 0.0f, size, data);
  } else if (name == "scale_and_cap") {  // y: the scale, then the cap
    std::copy(x.data(), x.data() + size, data);
    chosen.scale_and_cap(data, size, size ? y.data()[0] : 1.0f, size > 1 ? y.data()[1] : 0.0f);
  } else if (name == "rms_norm") {
    chosen.rms_norm(x.data(), y.data(), 1e-6f, size, data);
  } else if (name == "rotate") {  // y: cos, then sin
    std::copy(x.data(), x.data() + size, data);
    chosen.rotate(data, y.data(), y.data() + size / 2, size / 2);
  } else {
    throw std::invalid_argument("'" + name + "' is no layer");
  }
  return result;
}

}  // namespace

void bind_matrix(nb::module_& module) {
  nb::class_<Matrix>(module, "PackedMatrix", "Repacked weights [num_outputs, num_inputs].")
      .def("__init__", &make_room, "stored"_a, "num_outputs"_a, "num_inputs"_a, "rounding"_a = "none",
           "Zeros, for weights that `set_rows` gives piece by piece.")
      .def("set_rows", &set_rows, "first"_a, nb::arg("data").noconvert(), nb::arg("order").noconvert() = nb::none(),
           "Repacks a piece: outputs from `first` on, in multiples of 16 but for the last; output first + i is row "
           "order[i] of the piece (uint8 [rows, bytes of a row]). Not once a decoder runs with it.")
      .def_prop_ro("num_outputs", &Matrix::num_outputs)
      .def_prop_ro("num_inputs", &Matrix::num_inputs)
      .def_prop_ro("num_bytes", &Matrix::num_bytes, "Bytes of the repacked weights.")
      .def_prop_ro("layout", [](const Matrix& m) { return name_of(m.view().layout); })
      .def(
          "row",
          [](const Matrix& m, size_t output) {
            if (output >= m.num_outputs()) throw std::invalid_argument("there is no such output");
            Result result = make_array<float, 2>({1, m.num_inputs()});
            m.row(output, result.data());
            return result;
          },
          "output"_a, "One output's weights as float32 [1, num_inputs].")
      .def(
          "multiply",
          [](const Matrix& m, const Floats& x, const std::optional<std::string>& isa, std::optional<int> threads) {
            return multiply_all({&m}, x, {}, "store", {}, isa, threads)[0];
          },
          "x"_a, "isa"_a = nb::none(), "threads"_a = nb::none(),
          "x [rows, num_inputs] float32 -> [rows, num_outputs] float32.");
  module.def("pack_matrix", &pack, "stored"_a, "data"_a, "num_inputs"_a, "order"_a = nb::none(),
             "rounding"_a = "none",
             "Repacks stored weights (uint8 [rows, bytes of a row]), rounded to none, q4, q8_0 or bf16; `order` names "
             "the row of each output. ValueError where shapes or formats do not fit.");
  module.def("multiply", &multiply_all, "matrices"_a, "x"_a, "biases"_a = std::vector<std::optional<Vector>>(),
             "epilogue"_a = "store", "start"_a = std::vector<Floats>(), "isa"_a = nb::none(), "threads"_a = nb::none(),
             "Products of x [rows, inputs] with several matrices in one loop; epilogue: store, add (to start), "
             "silu_multiply or gelu_tanh_multiply (of exactly two).");
  module.def("apply_layer", &apply_layer, "name"_a, "x"_a, "y"_a, "isa"_a = nb::none(),
             "silu_multiply, gelu_tanh_multiply, add_scaled (x to y, times y[0]), scale_and_cap (y: scale, cap), "
             "rms_norm or rotate (y: cos, then sin) of float32 vectors.");
  module.def(
      "to_half",
      [](const Vector& x) {
        nb::ndarray<nb::numpy, uint16_t, nb::ndim<1>> result = make_array<uint16_t, 1>({x.shape(0)});
        for (size_t i = 0; i < x.shape(0); ++i) result.data()[i] = float_to_half(x.data()[i]);
        return result;
      },
      "x"_a, "Bits of the nearest float16: core/half.h.");
  module.def(
      "decode",
      [](const std::string& name, const Bytes& data, size_t num_inputs) {
        const Stored stored = stored_named(name);
        check_bytes(stored, data, num_inputs);
        Result result = make_array<float, 2>({data.shape(0), num_inputs});
        nb::gil_scoped_release release;
        for (size_t i = 0; i < data.shape(0); ++i)
          decode_row(stored, data.data() + i * data.shape(1), num_inputs, result.data() + i * num_inputs);
        return result;
      },
      "stored"_a, "data"_a, "num_inputs"_a, "Stored rows as float32 [rows, num_inputs].");
}

}  // namespace forerun
