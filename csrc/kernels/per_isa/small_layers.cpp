// Norms, positions and sums, for one instruction set.
#include "kernels/per_isa/fill.h"

#include "lanes/lanes.h"

#include "kernels/layers.h"

namespace forerun::FORERUN_ISA {

void fill_layers(Kernels& table) {
  table.rms_norm = rms_norm;
  table.rotate = rotate;
  table.silu_multiply = silu_multiply;
  table.gelu_tanh_multiply = gelu_tanh_multiply;
  table.add_scaled = add_scaled;
  table.scale_and_cap = scale_and_cap;
  table.to_steps = to_steps;
}

}  // namespace forerun::FORERUN_ISA
