#include "kernels/table.h"

#include <algorithm>
#include <string>

#include "kernels/isa.h"

namespace forerun {

#if defined(FORERUN_HAS_X86)
namespace avx512vnni {
extern const Kernels table;
}
namespace avx2 {
extern const Kernels table;
}
#endif
namespace portable {
extern const Kernels table;
}

const Kernels* kernels_named(const char* name) {
  const std::vector<std::string>& usable = usable_isas();
  if (std::find(usable.begin(), usable.end(), name) == usable.end()) return nullptr;
#if defined(FORERUN_HAS_X86)
  for (const Kernels* table : {&avx512vnni::table, &avx2::table})
    if (std::string(name) == table->name) return table;
#endif
  return &portable::table;
}

const Kernels& kernels() {
  static const Kernels& chosen = *kernels_named(chosen_isa().c_str());
  return chosen;
}

}  // namespace forerun
