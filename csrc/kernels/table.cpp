#include "kernels/table.h"

#include <algorithm>
#include <string>

#include "kernels/isa.h"

namespace forerun {

#if defined(FORERUN_HAS_X86)
namespace avx512vnni {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
#endif
namespace portable {
const Kernels& table();
}

const Kernels* kernels_named(const char* name) {
  const std::vector<std::string>& usable = usable_isas();
  if (std::find(usable.begin(), usable.end(), name) == usable.end()) return nullptr;
#if defined(FORERUN_HAS_X86)
  if (std::string(name) == "avx512vnni") return &avx512vnni::table();
  if (std::string(name) == "avx2") return &avx2::table();
#endif
  return &portable::table();
}

const Kernels& kernels() {
  static const Kernels& chosen = *kernels_named(chosen_isa().c_str());
  return chosen;
}

}  // namespace forerun
