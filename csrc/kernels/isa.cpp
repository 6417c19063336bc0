#include "kernels/isa.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace forerun {

namespace {

std::vector<std::string> find_usable() {
  std::vector<std::string> found;
#if defined(FORERUN_HAS_X86)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
    found.emplace_back("avx512vnni");
  // Every processor with AVX2 and FMA converts float16 too; clang before 19 cannot ask for f16c by name.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    found.emplace_back("avx2");
#endif
  found.emplace_back("portable");
  return found;
}

std::string choose() {
  const std::vector<std::string>& usable = usable_isas();
  const char* wanted = std::getenv("FORERUN_ISA");
  if (wanted == nullptr || *wanted == 0) return usable.front();
  if (std::find(usable.begin(), usable.end(), wanted) != usable.end()) return wanted;
  std::string names;
  for (const std::string& name : usable) names += (names.empty() ? "" : ", ") + name;
  throw std::runtime_error("FORERUN_ISA=" + std::string(wanted) + " cannot run here: this machine runs " + names);
}

}  // namespace

const std::vector<std::string>& usable_isas() {
  static const std::vector<std::string> usable = find_usable();
  return usable;
}

const std::string& chosen_isa() {
  static const std::string chosen = choose();
  return chosen;
}

}  // namespace forerun
