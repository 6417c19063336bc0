// The table of one instruction set. Everything in this folder is compiled once for each (CMakeLists.txt).
#include "kernels/per_isa/fill.h"

namespace forerun::FORERUN_ISA {

const Kernels& table();

const Kernels& table() {
  static const Kernels filled = [] {
    Kernels made{};
    made.name = FORERUN_ISA_NAME;
    fill_products(made);
    fill_attention(made);
    fill_layers(made);
    return made;
  }();
  return filled;
}

}  // namespace forerun::FORERUN_ISA
