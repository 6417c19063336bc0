#include "rows/filter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <tuple>

#include "rows/logarithm.h"

namespace forerun {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The next float above: x > value is x >= next_above(value). Not for NaN or infinity.
float next_above(float value) { return std::nextafter(value, kInfinity); }

// Ids and their weights, ascending by id.
struct Listed {
  std::vector<uint32_t> ids;
  std::vector<double> weights;
};

Listed weighed(const float* logits, Scale scale, std::vector<uint32_t> ids) {
  std::vector<float> values(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) values[i] = logits[ids[i]];
  std::vector<double> weights(ids.size() + kLanes);
  row_kernels().weigh(values.data(), values.size(), scale.largest, scale.rate, weights.data());
  weights.resize(ids.size());
  return {std::move(ids), std::move(weights)};
}

// Keeps the places for which `keep` is true.
template <class Keep>
void shrink(Listed& listed, const Keep& keep) {
  size_t count = 0;
  for (size_t i = 0; i < listed.ids.size(); ++i) {
    if (!keep(i)) continue;
    listed.ids[count] = listed.ids[i];
    listed.weights[count++] = listed.weights[i];
  }
  listed.ids.resize(count);
  listed.weights.resize(count);
}

// Every id whose weight is at least `least`: found among those whose logit is above a bound that rounding cannot reach,
// neither that of a weight (which at a huge temperature is 1 for different logits) nor that of the bound.
Listed at_least(const float* logits, size_t width, Scale scale, double least) {
  float bound = -kInfinity;
  if (least > 1e-300) {  // no weight lies between that and 0
    const double drop = (natural_log(least) - 1e-12) / scale.rate;
    bound = float(scale.largest + drop - 1e-6 * (std::fabs(scale.largest) + std::fabs(drop) + 1.0));
  }
  Listed found = weighed(logits, scale, ids_at_least(logits, width, bound));
  shrink(found, [&](size_t i) { return found.weights[i] >= least; });
  return found;
}

// Bins of weights in (0, 1] by exponent and the first 6 bits behind it, the heaviest first; the last takes the rest.
constexpr int kBinShift = 46, kNumBins = 2048;
constexpr uint64_t kFirstBin = uint64_t(0x3FF0000000000000) >> kBinShift;

int bin_of(double weight) {
  uint64_t bits;
  std::memcpy(&bits, &weight, 8);
  return int(std::min(kFirstBin - (bits >> kBinShift), uint64_t(kNumBins - 1)));
}

double least_of(int bin) {
  if (bin == kNumBins - 1) return 0.0;
  const uint64_t bits = (kFirstBin - uint64_t(bin)) << kBinShift;
  double weight;
  std::memcpy(&weight, &bits, 8);
  return weight;
}

// Sums of weights by bin. Four of each, because the same bin comes again before a sum of doubles is done.
class Bins {
 public:
  Bins() : sums_(4 * kNumBins) {}
  void add(const double* weights, size_t n) {
    for (size_t i = 0; i < n; ++i) sums_[size_t(bin_of(weights[i])) * 4 + i % 4] += weights[i];
  }
  // (the bin in which the running share of `total` reaches top_p, or the last that has any mass; the share before it)
  std::pair<int, double> crossing(double top_p, double total) const {
    double sum = 0.0;
    std::pair<int, double> last{0, 0.0};
    for (int bin = 0; bin < kNumBins; ++bin) {
      const double* four = &sums_[size_t(bin) * 4];
      const double here = (four[0] + four[1]) + (four[2] + four[3]);
      if (!(here > 0.0)) continue;
      last = {bin, sum / total};
      sum += here;
      if (sum / total >= top_p) break;
    }
    return last;
  }

 private:
  std::vector<double> sums_;
};

// Keeps the ids whose likelier ids hold less than top_p of `total`. What is listed holds at least that much.
void keep_nucleus(Listed& listed, double total, double top_p) {
  Bins bins;
  bins.add(listed.weights.data(), listed.weights.size());
  const std::pair<int, double> crossing = bins.crossing(top_p, total);
  const int edge = crossing.first;
  double share = crossing.second;
  std::vector<size_t> places;
  std::vector<double> probs(listed.weights.size());
  for (size_t i = 0; i < probs.size(); ++i) {
    probs[i] = listed.weights[i] / total;
    if (bin_of(listed.weights[i]) == edge) places.push_back(i);
  }
  std::stable_sort(places.begin(), places.end(), [&](size_t i, size_t j) { return probs[i] > probs[j]; });
  std::vector<char> kept(probs.size());
  for (const size_t place : places) {
    if (share >= top_p) break;
    kept[place] = 1;
    share += probs[place];
  }
  shrink(listed, [&](size_t i) { return kept[i] || bin_of(listed.weights[i]) < edge; });
}

// The ids of a whole row that top_p may keep, and the total of all.
std::pair<Listed, double> likely(const float* logits, size_t width, Scale scale, double top_p) {
  Bins bins;
  double weights[kBlock], total = 0.0;
  for (size_t start = 0; start < width; start += kBlock) {
    const size_t count = std::min(kBlock, width - start);
    total += row_kernels().weigh(logits + start, count, scale.largest, scale.rate, weights);
    bins.add(weights, count);
  }
  return {at_least(logits, width, scale, least_of(bins.crossing(top_p, total).first)), total};
}

}  // namespace

std::vector<uint32_t> ids_at_least(const float* values, size_t n, float least) {
  std::vector<uint32_t> ids;
  uint32_t found[4 * kBlock];
  for (size_t start = 0; start < n; start += 4 * kBlock) {
    const size_t count =
        row_kernels().find_at_least(values + start, std::min(4 * kBlock, n - start), least, uint32_t(start), found);
    ids.insert(ids.end(), found, found + count);
  }
  return ids;
}

float kth_largest(const float* values, size_t n, size_t k) {
  // The k best so far and some more; what is not above the worst of k need not be looked at again.
  std::vector<float> best;
  uint32_t found[4 * kBlock];
  const auto keep_k = [&] {
    std::nth_element(best.begin(), best.begin() + ptrdiff_t(k - 1), best.end(), std::greater<float>());
    best.resize(k);
  };
  float above = -kInfinity;
  size_t piece = 256;
  for (size_t start = 0; start < n; start += piece) {
    piece = std::min(start == 0 ? piece : 2 * piece, 4 * kBlock);
    const size_t count =
        row_kernels().find_at_least(values + start, std::min(piece, n - start), above, uint32_t(start), found);
    for (size_t i = 0; i < count; ++i) best.push_back(values[found[i]]);
    if (best.size() >= 2 * k + piece / 4) {
      keep_k();
      if (best[k - 1] == kInfinity) return kInfinity;
      above = next_above(best[k - 1]);
    }
  }
  keep_k();
  return best[k - 1];
}

std::unique_ptr<Mass> filtered(const float* logits, size_t width, Scale scale, Filters filters) {
  const bool has_top_k = filters.top_k > 0 && filters.top_k < width;
  Listed kept;
  double total = 0.0;
  if (has_top_k) {
    kept = weighed(logits, scale, ids_at_least(logits, width, kth_largest(logits, width, filters.top_k)));
    for (const double weight : kept.weights) total += weight;
  } else if (filters.top_p < 1.0) {
    std::tie(kept, total) = likely(logits, width, scale, filters.top_p);
  } else {
    kept = at_least(logits, width, scale, filters.min_p);  // the largest weight is 1
  }
  if (filters.top_p < 1.0) keep_nucleus(kept, total, filters.top_p);
  if (filters.min_p > 0.0) shrink(kept, [&](size_t i) { return kept.weights[i] >= filters.min_p; });
  return std::make_unique<ListedMass>(width, std::move(kept.ids), std::move(kept.weights));
}

std::pair<size_t, std::vector<uint32_t>> ranked(const float* values, size_t n, uint32_t token, size_t num_top) {
  const RowKernels& kernels = row_kernels();
  const float chosen = values[token];
  const size_t rank = 1 + kernels.count_at_least(values, token, chosen) +
                      kernels.count_at_least(values + token, n - token, next_above(chosen));
  num_top = std::min(num_top, kernels.count_at_least(values, n, -std::numeric_limits<float>::max()));
  if (num_top == 0) return {rank, {}};
  std::vector<uint32_t> top = ids_at_least(values, n, kth_largest(values, n, num_top));
  std::stable_sort(top.begin(), top.end(), [&](uint32_t i, uint32_t j) { return values[i] > values[j]; });
  top.resize(num_top);
  return {rank, std::move(top)};
}

double log_total(const float* logits, size_t width, double largest) {
  double weights[kBlock], total = 0.0;
  for (size_t start = 0; start < width; start += kBlock)
    total += row_kernels().weigh(logits + start, std::min(kBlock, width - start), largest, 1.0, weights);
  return natural_log(total);
}

}  // namespace forerun
