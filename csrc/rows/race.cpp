#include "rows/race.h"

#include <algorithm>

namespace forerun {

uint32_t race_of_logits(const float* logits, size_t width, Scale scale, uint32_t best, uint64_t key) {
  const RowKernels& kernels = row_kernels();
  // In float a rate may underflow; the smallest one that does not keeps infinite logits at no weight.
  const float rate = std::max(float(scale.rate), std::numeric_limits<float>::denorm_min());
  Race race(key);
  race.enter(best, 1.0);
  uint32_t ids[kBlock];
  for (size_t start = 0; start < width; start += kBlock) {
    const size_t count = std::min(kBlock, width - start);
    const float limit = float(race.time()) * 1.002f;
    const size_t num_found =
        kernels.find_fast(logits + start, count, float(scale.largest), rate, limit, key, uint32_t(start), ids);
    for (size_t i = 0; i < num_found; ++i) {
      double weight[kLanes];
      kernels.weigh(logits + ids[i], 1, scale.largest, scale.rate, weight);
      race.enter(ids[i], weight[0]);
    }
  }
  return race.winner();
}

}  // namespace forerun
