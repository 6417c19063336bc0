#include "kernels/isa.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

#if defined(FORERUN_HAS_AVX2)
#include <cpuid.h>
#elif defined(FORERUN_HAS_NEON) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(FORERUN_HAS_NEON) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace forerun {

namespace {

// What runs_NAME asks: the processor, and the system, which has to keep the registers when threads take turns.
#if defined(FORERUN_HAS_AVX2)
bool runs_avx512vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

// Every processor with AVX2 and FMA converts float16 too; clang before 19 cannot ask for f16c by name.
bool runs_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// gcc 12 and clang 14 cannot ask for AVX-VNNI by name. It has no state of its own: AVX2's is enough.
#if defined(FORERUN_MODEL_VNNI)
bool runs_avx2vnni() { return runs_avx2(); }
#elif defined(FORERUN_HAS_AVX2VNNI)
bool runs_avx2vnni() {
  constexpr unsigned kFeatures = 7, kAvxVnni = 1u << 4;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (!runs_avx2() || !__get_cpuid_count(kFeatures, 0, &eax, &ebx, &ecx, &edx) || eax < 1) return false;
  return __get_cpuid_count(kFeatures, 1, &eax, &ebx, &ecx, &edx) && (eax & kAvxVnni) != 0;
}
#endif
#endif

#if defined(FORERUN_HAS_NEON)
bool runs_neon() {
#if defined(__linux__)
  constexpr unsigned long kDotProducts = 1ul << 20;  // HWCAP_ASIMDDP, which old headers lack
  return (getauxval(AT_HWCAP) & kDotProducts) != 0;
#elif defined(__APPLE__)
  int found = 0;
  size_t size = sizeof(found);
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &found, &size, nullptr, 0) == 0 && found != 0;
#else
  return false;  // nobody to ask
#endif
}
#endif

bool runs_portable() { return true; }

std::vector<std::string> find_usable() {
#if defined(FORERUN_HAS_AVX2)
  __builtin_cpu_init();
#endif
  std::vector<std::string> found;
#define FORERUN_FIND(isa) \
  if (runs_##isa()) found.emplace_back(#isa);
  FORERUN_EACH_ISA(FORERUN_FIND)
#undef FORERUN_FIND
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
