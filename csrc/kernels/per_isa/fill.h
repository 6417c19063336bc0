// The parts of a table, a translation unit each, so that they compile side by side.
#pragma once

#include "kernels/table.h"

namespace forerun::FORERUN_ISA {

void fill_products(Kernels& table);   // products.cpp
void fill_attention(Kernels& table);  // attention.cpp
void fill_layers(Kernels& table);     // small_layers.cpp

}  // namespace forerun::FORERUN_ISA
