// Products with weight matrices, for one instruction set.
#include "kernels/per_isa/fill.h"

#include "lanes/lanes.h"

#include "kernels/matmul.h"
#include "kernels/quantise.h"

namespace forerun::FORERUN_ISA {

void fill_products(Kernels& table) {
  table.quantise_rows = quantise_rows;
  table.multiply_panels = multiply_panels;
}

}  // namespace forerun::FORERUN_ISA
