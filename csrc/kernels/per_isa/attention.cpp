// Attention, for one instruction set.
#include "kernels/per_isa/fill.h"

#include "lanes/lanes.h"

#include "kernels/attend.h"

namespace forerun::FORERUN_ISA {

void fill_attention(Kernels& table) {
  table.attend = attend;
  table.merge_attention = merge_attention;
}

}  // namespace forerun::FORERUN_ISA
