// The row processor's kernels, compiled once for each instruction set.
#include "lanes/wide.h"

#include "rows/table.h"

#include "rows/random.h"

#include "rows/kernels_weigh.h"

#include "rows/kernels_search.h"

namespace forerun::FORERUN_ISA {

extern const RowKernels row_table;
const RowKernels row_table = {
    FORERUN_ISA_NAME, weigh, survey, leave, find_at_least, count_at_least, find_fast,
};

}  // namespace forerun::FORERUN_ISA
