#include "rows/table.h"

#include <string>

#include "kernels/isa.h"

namespace forerun {

#if defined(FORERUN_HAS_X86)
namespace avx512vnni {
extern const RowKernels row_table;
}
namespace avx2 {
extern const RowKernels row_table;
}
#endif
namespace portable {
extern const RowKernels row_table;
}

namespace {

const RowKernels& choose() {
#if defined(FORERUN_HAS_X86)
  for (const RowKernels* table : {&avx512vnni::row_table, &avx2::row_table})
    if (chosen_isa() == table->name) return *table;
#endif
  return portable::row_table;
}

}  // namespace

const RowKernels& row_kernels() {
  static const RowKernels& chosen = choose();
  return chosen;
}

}  // namespace forerun
