// SplitMix64 as randomness.py has it: constants of the counter-based noise.
#pragma once

#include <cstdint>

namespace forerun {

constexpr uint64_t kGamma = 0x9E3779B97F4A7C15;
constexpr uint64_t kMultiplier1 = 0xBF58476D1CE4E5B9, kMultiplier2 = 0x94D049BB133111EB;

}  // namespace forerun
