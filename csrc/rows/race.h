// Gumbel-max draws: the id with the largest log weight + Gumbel noise, found as a race.
//
// log w - log(-log u) is largest where the time -log(u) / w is smallest, so one logarithm an id is enough; and since
// 1 - u <= -log u, an id with 1 - u above (the best time) * w need not take part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "rows/logarithm.h"
#include "rows/mass.h"
#include "rows/random.h"

namespace forerun {

// The word of (key, id), as randomness.py has it.
inline uint64_t noise_word(uint64_t key, uint32_t id) {
  uint64_t word = key + (uint64_t(id) + 1) * kGamma;
  word = (word ^ (word >> 30)) * kMultiplier1;
  word = (word ^ (word >> 27)) * kMultiplier2;
  return word ^ (word >> 31);
}

class Race {
 public:
  explicit Race(uint64_t key) : key_(key) {}
  // Ids may come in any order; of equal times the lowest id wins. Weight 0 never does.
  void enter(uint32_t id, double weight) {
    const double u = (double(noise_word(key_, id) >> 12) + 0.5) * 0x1p-52;
    if (!(weight > 0.0) || 1.0 - u > time_ * weight * (1.0 + 1e-9)) return;  // more than rounding can be wrong
    const double time = -natural_log(u) / weight;
    if (time < time_ || (time == time_ && id < winner_)) {
      time_ = time;
      winner_ = id;
    }
  }
  uint32_t winner() const { return winner_; }
  double time() const { return time_; }

 private:
  uint64_t key_;
  uint32_t winner_ = 0;
  double time_ = std::numeric_limits<double>::infinity();
};

// The winner of a row of logits [width] whose likeliest id is `best`; weights need no total for this.
uint32_t race_of_logits(const float* logits, size_t width, Scale scale, uint32_t best, uint64_t key);

}  // namespace forerun
