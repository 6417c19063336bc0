#include "kernels/table.h"

#include <algorithm>
#include <string>

#include "kernels/isa.h"

namespace forerun {

#define FORERUN_DECLARE(isa) \
  namespace isa {            \
  const Kernels& table();    \
  }
FORERUN_EACH_ISA(FORERUN_DECLARE)
#undef FORERUN_DECLARE

const Kernels* kernels_named(const char* name) {
  const std::vector<std::string>& usable = usable_isas();
  if (std::find(usable.begin(), usable.end(), name) == usable.end()) return nullptr;
#define FORERUN_CHOOSE(isa) \
  if (std::string(name) == #isa) return &isa::table();
  FORERUN_EACH_ISA(FORERUN_CHOOSE)
#undef FORERUN_CHOOSE
  return nullptr;
}

const Kernels& kernels() {
  static const Kernels& chosen = *kernels_named(chosen_isa().c_str());
  return chosen;
}

}  // namespace forerun
