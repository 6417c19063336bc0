// Cosines and sines of rotary positions, computed once per position, in double.
//
// Without the system's library: its rounding differs from system to system, and a model's numbers must not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

// cos(x) and sin(x) for |x| < 2^30, to about an ulp of double.
void cos_sin(double x, double* cos, double* sin);

class Rotary {
 public:
  // `frequencies` in radians a position; every cosine and sine is multiplied by `scale`.
  Rotary(std::vector<double> frequencies, float scale) : frequencies_(std::move(frequencies)), scale_(scale) {}

  // Computes what is missing for positions below `num_positions`. Pointers of earlier calls become invalid.
  void reach(int64_t num_positions);
  size_t num_pairs() const { return frequencies_.size(); }
  const float* cos(int64_t position) const { return values_.data() + size_t(position) * 2 * frequencies_.size(); }
  const float* sin(int64_t position) const { return cos(position) + frequencies_.size(); }

 private:
  std::vector<double> frequencies_;
  float scale_;
  std::vector<float> values_;  // [positions][cosines, sines]
};

}  // namespace forerun
