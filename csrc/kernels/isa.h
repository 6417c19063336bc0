// Which instruction sets were compiled in, best first, and which of them this machine runs.
#pragma once

#include <string>
#include <vector>

namespace forerun {

// Names of the instruction sets that were compiled in and that this machine can run, best first; "portable" is last.
const std::vector<std::string>& usable_isas();

// The one to use: FORERUN_ISA's, or the best. Throws std::runtime_error where FORERUN_ISA is unknown or cannot run
// here.
const std::string& chosen_isa();

}  // namespace forerun
