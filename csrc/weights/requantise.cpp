// Rounding weights anew, to 4 bits in groups of 32.
//
// d * (code - 8) (kQ4_0): 4.5 bits a weight.
#include <cmath>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

float squared_error(const float* w, float d) {
  const float inverse = 1.0f / d;
  float error = 0.0f;
  for (size_t i = 0; i < kGroup; ++i) {
    float q = std::nearbyintf(w[i] * inverse);
    q = q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
    const float off = w[i] - q * d;
    error += off * off;
  }
  return error;
}

}  // namespace

void quantise_group(const float* w, size_t group, Codes& to) {
  float extreme = 0.0f;  // of the largest magnitude: code 0, as only -8 has no opposite
  for (size_t i = 0; i < kGroup; ++i)
    if (!(std::fabs(w[i]) <= std::fabs(extreme))) extreme = w[i];
  uint16_t best = float_to_half(extreme / -8.0f);
  float least = -1.0f;
  for (int step = 0; step < 16; ++step) {
    const uint16_t half = float_to_half(extreme / (-8.8f + 0.15f * float(step)));
    const float d = half_to_float(half);
    if (d == 0.0f || !std::isfinite(d)) continue;
    const float error = squared_error(w, d);
    if (least < 0.0f || error < least) least = error, best = half;
  }
  to.d[group] = best;
  const float d = half_to_float(best);
  const float inverse = d == 0.0f || !std::isfinite(d) ? 0.0f : 1.0f / d;
  for (size_t i = 0; i < kGroup; ++i) {
    float q = std::nearbyintf(w[i] * inverse);
    q = q < -8.0f ? -8.0f : q > 7.0f ? 7.0f : q;
    to.code[kGroup * group + i] = uint8_t(int(q == q ? q : 0.0f) + 8);
  }
}

}  // namespace forerun
