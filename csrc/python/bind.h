// The parts of the module, one file each.
#pragma once

#include <nanobind/nanobind.h>

namespace forerun {

void bind_matrix(nanobind::module_& module);   // bind_matrix.cpp: repacking and products, for tests and measurements
void bind_decoder(nanobind::module_& module);  // bind_decoder.cpp
void bind_rows(nanobind::module_& module);     // bind_rows.cpp: the row processor

}  // namespace forerun
