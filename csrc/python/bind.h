// The parts of the module, one file each, and what they share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <initializer_list>

namespace forerun {

void bind_matrix(nanobind::module_& module);    // bind_matrix.cpp: repacking and products, for tests and measurements
void bind_decoder(nanobind::module_& module);   // bind_decoder.cpp
void bind_rows(nanobind::module_& module);      // bind_rows.cpp: the row processor
void bind_drafting(nanobind::module_& module);  // bind_drafting.cpp: the index of drafts from text

// A numpy array of its own, to be filled.
template <class T, size_t Dimensions>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<Dimensions>> make_array(std::initializer_list<size_t> shape) {
  size_t size = 1;
  for (const size_t length : shape) size *= length;
  T* data = new T[size];
  nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  return {data, shape, owner};
}

}  // namespace forerun
