// forerun._native: what Python sees. Each bind_* function lives in its own file beside this one.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core/pool.h"
#include "kernels/isa.h"
#include "python/bind.h"

namespace nb = nanobind;

NB_MODULE(_native, module) {
  module.doc() = "The native runtime: quantised weights, the decoder, the row processor, and the index of drafts.";
  module.def("isa", [] { return forerun::chosen_isa(); }, "The instruction set in use.");
  module.def("usable_isas", [] { return forerun::usable_isas(); }, "What this machine can run, best first.");
  module.def("num_threads", [] { return forerun::Pool::shared().num_threads(); }, "Threads of the process's pool.");
  forerun::bind_matrix(module);
  forerun::bind_decoder(module);
  forerun::bind_rows(module);
  forerun::bind_drafting(module);
}
