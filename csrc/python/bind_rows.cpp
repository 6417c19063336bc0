// The row processor: masses of rows of logits, draws from them, and edits in place.
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "python/bind.h"
#include "rows/edits.h"
#include "rows/filter.h"
#include "rows/race.h"

namespace nb = nanobind;

namespace forerun {

namespace {

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Logits = Vector<const float>;
using Edited = Vector<float>;

Ids ids_of(const Vector<const int64_t>& ids) { return {ids.data(), ids.shape(0)}; }

std::unique_ptr<Mass> softmax(const Logits& logits, double temperature) {
  if (logits.shape(0) == 0) throw std::invalid_argument("a row of no logits");
  return std::make_unique<Softmax>(logits.data(), logits.shape(0), 1.0 / temperature);
}

std::unique_ptr<Mass> mass_of_filters(const Logits& logits, double temperature, size_t top_k, double top_p,
                                      double min_p, double largest) {
  return filtered(logits.data(), logits.shape(0), {largest, 1.0 / temperature}, {top_k, top_p, min_p});
}

std::unique_ptr<Mass> mass_of_list(size_t width, const Vector<const int64_t>& ids,
                                   const Vector<const double>& weights) {
  if (weights.shape(0) != ids.shape(0)) throw std::invalid_argument("every id needs one weight");
  const Ids given = ids_of(ids);
  int64_t before = -1;
  for (size_t i = 0; i < given.size; ++i) {  // what looks ids up relies on their order
    if (given.data[i] <= before || uint64_t(given.data[i]) >= width)
      throw std::invalid_argument("ids must ascend, from 0 to below the width");
    before = given.data[i];
  }
  return std::make_unique<ListedMass>(width, std::vector<uint32_t>(given.data, given.data + given.size),
                                      std::vector<double>(weights.data(), weights.data() + given.size));
}

// (ids, or None for all below the width; their probabilities)
nb::tuple pool(const Mass& mass) {
  const std::vector<uint32_t>& ids = mass.ids();
  nb::object listed = nb::none();
  if (!ids.empty()) {
    const auto array = make_array<int64_t, 1>({ids.size()});
    std::copy(ids.begin(), ids.end(), array.data());
    listed = nb::cast(array);
  }
  const size_t size = ids.empty() ? mass.width() : ids.size();
  const auto probs = make_array<double, 1>({size});
  {
    const nb::gil_scoped_release released;
    mass.weights(probs.data());
    for (size_t i = 0; i < size; ++i) probs.data()[i] *= mass.inverse();
  }
  return nb::make_tuple(listed, probs);
}

std::pair<size_t, std::vector<uint32_t>> rank_and_top(const Logits& logits, size_t token, size_t num_top) {
  if (token >= logits.shape(0)) throw nb::index_error("the token is beyond the row");
  return ranked(logits.data(), logits.shape(0), uint32_t(token), num_top);
}

void keep(const Edited& logits, const Vector<const bool>& mask) {
  if (mask.shape(0) < logits.shape(0)) throw std::invalid_argument("the mask is narrower than the row");
  keep_only(logits.data(), logits.shape(0), reinterpret_cast<const uint8_t*>(mask.data()));
}

void subtract_amounts(const Edited& logits, const Vector<const int64_t>& ids, const Vector<const double>& amounts) {
  if (amounts.shape(0) != ids.shape(0)) throw std::invalid_argument("every id needs one amount");
  subtract(logits.data(), logits.shape(0), ids_of(ids), amounts.data());
}

}  // namespace

void bind_rows(nb::module_& module) {
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Mass>(module, "Mass", "Probability mass over the ids of a row, known up to a factor.")
      .def_prop_ro("width", &Mass::width)
      .def_prop_ro("total", &Mass::total)
      .def("pool", &pool)
      .def("prob", &Mass::prob, nb::arg("token"))
      .def("draw", &Mass::draw, nb::arg("u"), Released())
      .def("race", &Mass::race, nb::arg("key"), Released())
      .def("minus", &Mass::minus, nb::arg("other"), nb::arg("scale"), Released(), nb::keep_alive<0, 1>(),
           nb::keep_alive<0, 2>());
  // No conversion: the mass reads the caller's own logits for as long as it lives.
  module.def("softmax", &softmax, nb::arg("logits").noconvert(), nb::arg("temperature"), Released(),
             nb::keep_alive<0, 1>());
  module.def("mass_of_filters", &mass_of_filters, nb::arg("logits"), nb::arg("temperature"), nb::arg("top_k"),
             nb::arg("top_p"), nb::arg("min_p"), nb::arg("largest"), Released());
  module.def("mass_of_list", &mass_of_list, nb::arg("width"), nb::arg("ids"), nb::arg("weights"));
  module.def(
      "race_of_logits",
      [](const Logits& logits, double temperature, uint32_t best, double largest, uint64_t key) {
        return race_of_logits(logits.data(), logits.shape(0), {largest, 1.0 / temperature}, best, key);
      },
      nb::arg("logits"), nb::arg("temperature"), nb::arg("best"), nb::arg("largest"), nb::arg("key"), Released());
  module.def("rank_and_top", &rank_and_top, nb::arg("logits"), nb::arg("token"), nb::arg("num_top"));
  module.def(
      "log_total",
      [](const Logits& logits, double largest) { return log_total(logits.data(), logits.shape(0), largest); },
      nb::arg("logits"), nb::arg("largest"), Released());
  module.def(
      "penalise_repetition",
      [](const Edited& logits, const Vector<const int64_t>& ids, float penalty) {
        penalise_repetition(logits.data(), logits.shape(0), ids_of(ids), penalty);
      },
      nb::arg("logits").noconvert(), nb::arg("ids"), nb::arg("penalty"));
  module.def("subtract", &subtract_amounts, nb::arg("logits").noconvert(), nb::arg("ids"), nb::arg("amounts"));
  module.def(
      "rule_out",
      [](const Edited& logits, const Vector<const int64_t>& ids) {
        rule_out(logits.data(), logits.shape(0), ids_of(ids));
      },
      nb::arg("logits").noconvert(), nb::arg("ids"));
  module.def("keep_only", &keep, nb::arg("logits").noconvert(), nb::arg("mask"), Released());
}

}  // namespace forerun
