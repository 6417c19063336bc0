#include "rows/table.h"

#include <string>

#include "kernels/isa.h"

namespace forerun {

#define FORERUN_DECLARE(isa)          \
  namespace isa {                     \
  extern const RowKernels row_table;  \
  }
FORERUN_EACH_ISA(FORERUN_DECLARE)
#undef FORERUN_DECLARE

namespace {

const RowKernels& choose() {
#define FORERUN_CHOOSE(isa) \
  if (chosen_isa() == #isa) return isa::row_table;
  FORERUN_EACH_ISA(FORERUN_CHOOSE)
#undef FORERUN_CHOOSE
  return portable::row_table;  // not reached: the chosen one was compiled in
}

}  // namespace

const RowKernels& row_kernels() {
  static const RowKernels& chosen = choose();
  return chosen;
}

}  // namespace forerun
