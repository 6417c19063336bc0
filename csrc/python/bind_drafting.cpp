// The index behind suffix and lookup drafts.
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "drafting/occurrences.h"
#include "python/bind.h"

namespace nb = nanobind;

namespace forerun {

namespace {

using Tokens = std::vector<uint32_t>;
using Answer = std::tuple<size_t, Tokens, Tokens, Tokens>;

Answer answer(Continuation found) {
  return {found.size, std::move(found.tokens), std::move(found.votes), std::move(found.voters)};
}

}  // namespace

void bind_drafting(nb::module_& module) {
  nb::class_<Occurrences>(module, "Occurrences", "Where the last tokens of a text occurred before, and what followed.")
      .def(nb::init<std::vector<size_t>, size_t>(), nb::arg("sizes"), nb::arg("window") = 0)
      .def("reserve", &Occurrences::reserve, nb::arg("num_tokens"))
      .def(
          "append", [](Occurrences& index, const Tokens& tokens) { index.append(tokens.data(), tokens.size()); },
          nb::arg("tokens"))
      .def("end_text", &Occurrences::end_text)
      .def(
          "follow",
          [](Occurrences& index, size_t most, size_t voters) { return answer(index.follow(most, voters)); },
          nb::arg("most"), nb::arg("most_voters"))
      .def(
          "follow_tail",
          [](Occurrences& index, const Tokens& tail, size_t most, size_t voters) {
            return answer(index.follow(tail.data(), tail.size(), most, voters));
          },
          nb::arg("tail"), nb::arg("most"), nb::arg("most_voters"))
      .def_prop_ro("num_tokens", &Occurrences::num_tokens)
      .def_prop_ro("num_entries", &Occurrences::num_entries)
      .def_prop_ro("num_looked_at", &Occurrences::num_looked_at)
      .def_prop_ro("num_bytes", &Occurrences::num_bytes);
}

}  // namespace forerun
