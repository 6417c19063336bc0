// Which instruction sets were compiled in, best first, and which of them this machine runs.
#pragma once

#include <string>
#include <vector>

// FORERUN_EACH_ISA(X): X(name) for each set that was compiled in, best first. csrc/CMakeLists.txt says which were.
#if defined(FORERUN_HAS_AVX2VNNI)
#define FORERUN_EACH_ISA(X) X(avx512vnni) X(avx2vnni) X(avx2) X(portable)
#elif defined(FORERUN_HAS_AVX2)
#define FORERUN_EACH_ISA(X) X(avx512vnni) X(avx2) X(portable)
#elif defined(FORERUN_HAS_NEON)
#define FORERUN_EACH_ISA(X) X(neon) X(portable)
#else
#define FORERUN_EACH_ISA(X) X(portable)
#endif

namespace forerun {

// Names of the instruction sets that were compiled in and that this machine can run, best first; "portable" is last.
const std::vector<std::string>& usable_isas();

// The one to use: FORERUN_ISA's, or the best. Throws std::runtime_error where FORERUN_ISA is unknown or cannot run
// here.
const std::string& chosen_isa();

}  // namespace forerun
