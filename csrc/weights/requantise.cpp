// Rounding weights anew, to 4 bits in groups of 32.
//
// The form is kQ4K's, its last block of a row cut where it must be: 4.5 bits a weight (4.6 where K = 576 or 896). Root
// mean square errors relative to the weights of Qwen2.5-Coder-0.5B (mean of 28 matrices): 7.4 %, and 7.3 % with 16
// trials instead of 4. The others: kQ4_0 with the scale that loses least, 9.6 % at 4.5 bits; kQ4_1 likewise, 7.1 %
// at 5 bits.
//
// Sixteen rows go side by side, one per lane, so that no sum runs across.
#include <cmath>

#include "core/half.h"
#include "weights/codes.h"

namespace forerun {

namespace {

constexpr int kTrials = 4;
constexpr float kOneOfGroup = 1.0f / float(kGroup);

// A scale of codes 0 .. 15 and a minimum (what is subtracted; not negative) for each lane.
struct Fit {
  float scale[kPanel];
  float minimum[kPanel];
};

// To the nearest integer, ties to even; |x| < 2^22.
inline float nearest(float x) { return (x + 12582912.0f) - 12582912.0f; }
inline float at_most(float x, float limit) { return x < limit ? x : limit; }
inline float at_least(float x, float limit) { return x > limit ? x : limit; }
// For whole numbers that are not large: a comparison would keep gcc from doing lanes together, for it might trap.
inline float up_to_15(float x) { return 0.5f * (x + 15.0f - std::fabs(x - 15.0f)); }
inline float from_0(float x) { return 0.5f * (x + std::fabs(x)); }

// Takes the fit that follows, by least squares, from `sums` of a trial's codes q: of q, q * q and w * q.
void improve(const float* sum_w, const float (*sums)[kPanel], size_t lane, Fit& best, float* explained) {
  const float q = sums[0][lane], qq = sums[1][lane], wq = sums[2][lane], w = sum_w[lane];
  const float variance = qq - q * q * kOneOfGroup, covariance = wq - q * w * kOneOfGroup;
  float scale = variance > 0.0f ? covariance / variance : 0.0f, minimum = (scale * q - w) * kOneOfGroup;
  float squares = scale * covariance + w * w * kOneOfGroup;  // of w, that the fit explains
  if (!(minimum >= 0.0f) || !(variance > 0.0f)) {
    scale = qq > 0.0f ? wq / qq : 0.0f;
    minimum = 0.0f;
    squares = scale * wq;
  }
  if (!(squares > explained[lane])) return;
  explained[lane] = squares;
  best.scale[lane] = scale;
  best.minimum[lane] = minimum;
}

// The fits that lose least among those that follow from rounding with steps about (largest - smallest) / 15.
void fit_groups(const float* w, Fit& best) {
  float lowest[kPanel], highest[kPanel], sum_w[kPanel] = {}, explained[kPanel] = {};
  for (size_t lane = 0; lane < kPanel; ++lane) lowest[lane] = 0.0f, highest[lane] = w[lane];
  for (size_t k = 0; k < kGroup; ++k)
    for (size_t lane = 0; lane < kPanel; ++lane) {
      const float value = w[kPanel * k + lane];
      lowest[lane] = at_most(value, lowest[lane]);
      highest[lane] = at_least(value, highest[lane]);
      sum_w[lane] += value;
    }
  // Weights that are all alike are a minimum or, above zero, a scale alone.
  for (size_t lane = 0; lane < kPanel; ++lane) best.scale[lane] = 0.0f, best.minimum[lane] = -lowest[lane];
  for (int trial = 0; trial < kTrials; ++trial) {
    float inverse[kPanel], sums[3][kPanel] = {};
    for (size_t lane = 0; lane < kPanel; ++lane) {
      const float range = highest[lane] - lowest[lane];
      inverse[lane] = range > 1e-30f ? (14.4f + 0.8f * float(trial)) / range : 0.0f;
    }
    for (size_t k = 0; k < kGroup; ++k)
      for (size_t lane = 0; lane < kPanel; ++lane) {
        const float value = w[kPanel * k + lane];
        const float q = up_to_15(nearest((value - lowest[lane]) * inverse[lane]));
        sums[0][lane] += q;
        sums[1][lane] += q * q;
        sums[2][lane] += value * q;
      }
    for (size_t lane = 0; lane < kPanel; ++lane) improve(sum_w, sums, lane, best, explained);
  }
}

// `value` in 0 .. 63 steps of `unit`.
uint8_t six_bits(float value, float unit) {
  return unit > 0.0f && value > 0.0f ? uint8_t(at_most(nearest(at_most(value / unit, 64.0f)), 63.0f)) : uint8_t(0);
}

}  // namespace

void requantise_block(float* w, size_t num_groups, size_t lanes, uint8_t* tile) {
  Fit fits[kGroupsOfBlock];
  Codes codes[kPanel];
  float scale[kPanel] = {}, minimum[kPanel] = {}, poison[kPanel] = {};  // NaN where a weight is none or infinite
  for (size_t g = 0; g < num_groups; ++g) fit_groups(w + kPanel * kGroup * g, fits[g]);
  for (size_t k = 0; k < num_groups * kGroup; ++k)
    for (size_t lane = 0; lane < kPanel; ++lane) poison[lane] += w[kPanel * k + lane] * 0.0f;
  for (size_t lane = 0; lane < kPanel; ++lane) {
    for (size_t g = 0; g < num_groups; ++g) {
      scale[lane] = at_least(fits[g].scale[lane], scale[lane]);
      minimum[lane] = at_least(fits[g].minimum[lane], minimum[lane]);
    }
    codes[lane].d[0] = float_to_half(scale[lane] / 63.0f + poison[lane]);
    codes[lane].minimum[0] = float_to_half(minimum[lane] / 63.0f);
  }
  for (size_t g = 0; g < num_groups; ++g) {
    float below[kPanel], inverse[kPanel];
    for (size_t lane = 0; lane < kPanel; ++lane) {
      const float d = half_to_float(codes[lane].d[0]), dmin = half_to_float(codes[lane].minimum[0]);
      codes[lane].scale[g] = six_bits(fits[g].scale[lane], d);
      codes[lane].min_scale[g] = six_bits(fits[g].minimum[lane], dmin);
      const float step = d * float(codes[lane].scale[g]);
      below[lane] = dmin * float(codes[lane].min_scale[g]);
      inverse[lane] = step > 0.0f ? 1.0f / step : 0.0f;
    }
    float* group = w + kPanel * kGroup * g;
    for (size_t k = 0; k < kGroup; ++k)
      for (size_t lane = 0; lane < kPanel; ++lane)
        group[kPanel * k + lane] = from_0(up_to_15(nearest((group[kPanel * k + lane] + below[lane]) * inverse[lane])));
    for (size_t lane = 0; lane < lanes; ++lane)
      for (size_t k = 0; k < kGroup; ++k) {
        const float q = group[kPanel * k + lane];
        codes[lane].code[kGroup * g + k] = q > 0.0f ? uint8_t(int(q)) : uint8_t(0);  // 0 for NaN
      }
  }
  for (size_t lane = 0; lane < lanes; ++lane) write_tile(Layout::kQ4K, codes[lane], num_groups, lane, tile);
}

}  // namespace forerun
