// Every kernel, compiled once for each instruction set (CMakeLists.txt defines FORERUN_ISA and its name).
#include "kernels/table.h"

#include "lanes/lanes.h"

#include "kernels/matmul.h"
#include "kernels/quantise.h"

#include "kernels/attend.h"
#include "kernels/layers.h"

namespace forerun::FORERUN_ISA {

extern const Kernels table;
const Kernels table = {
    FORERUN_ISA_NAME,
    quantise_rows,
    multiply_panels,
    rms_norm,
    rotate,
    add,
    silu_multiply,
    to_half,
    to_steps,
    attend,
    merge_attention,
};

}  // namespace forerun::FORERUN_ISA
