#include "rows/mass.h"

#include <algorithm>

#include "rows/race.h"

namespace forerun {

namespace {

size_t num_blocks(size_t width) { return (width + kBlock - 1) / kBlock; }
size_t whole_lanes(size_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

}  // namespace

double Mass::prob(uint32_t id) const {
  double weight[kLanes];
  weigh_ids(&id, 1, weight);
  return weight[0] * inverse();
}

// -- all ids ----------------------------------------------------------------------------------------------------------

uint32_t DenseMass::draw(double u) const {
  const double target = u * total_;
  double before = 0.0, sum = 0.0;
  size_t chosen = 0;
  for (size_t block = 0; block < sums_.size(); ++block) {
    if (sums_[block] > 0.0) {  // rounding may leave no sum above the target: then the last one with mass is taken
      chosen = block;
      before = sum;
    }
    sum += sums_[block];
    if (sum > target) break;
  }
  double weights[kBlock];
  weigh_block(chosen, weights);
  const size_t start = chosen * kBlock, count = std::min(kBlock, width() - start);
  size_t token = 0;
  for (size_t i = 0; i < count; ++i) {
    if (!(weights[i] > 0.0)) continue;
    token = i;
    before += weights[i];
    if (before > target) break;
  }
  return uint32_t(start + token);
}

uint32_t DenseMass::race(uint64_t key) const {
  double weights[kBlock];
  Race race(key);
  for (size_t block = 0; block < sums_.size(); ++block) {
    weigh_block(block, weights);
    const size_t start = block * kBlock, count = std::min(kBlock, width() - start);
    for (size_t i = 0; i < count; ++i) race.enter(uint32_t(start + i), weights[i]);
  }
  return race.winner();
}

const std::vector<uint32_t>& DenseMass::ids() const {
  static const std::vector<uint32_t> all;
  return all;
}

void DenseMass::weights(double* to) const {
  double weights[kBlock];
  for (size_t start = 0; start < width(); start += kBlock) {
    weigh_block(start / kBlock, weights);
    std::copy_n(weights, std::min(kBlock, width() - start), to + start);
  }
}

std::unique_ptr<Mass> DenseMass::minus(const Mass& q, double scale) const {
  return std::make_unique<Residual>(*this, q, scale);
}

// Work on rows stays on the caller's thread: a tenth of a millisecond is gone before a thread that sleeps has woken.
Softmax::Softmax(const float* logits, size_t width, double rate)
    : DenseMass(width), logits_(logits), scale_{0.0, rate} {
  const size_t count = num_blocks(width);
  sums_.resize(count);
  std::vector<float> tops(count);
  std::vector<double> factors(whole_lanes(count));
  for (size_t block = 0; block < count; ++block) {
    const size_t start = block * kBlock;
    sums_[block] = row_kernels().survey(logits + start, std::min(kBlock, width - start), rate, &tops[block]);
  }
  scale_.largest = double(*std::max_element(tops.begin(), tops.end()));
  row_kernels().weigh(tops.data(), count, scale_.largest, rate, factors.data());
  for (size_t block = 0; block < count; ++block) total_ += sums_[block] *= factors[block];
}

double Softmax::weigh_block(size_t block, double* to) const {
  const size_t start = block * kBlock, count = start < width() ? std::min(kBlock, width() - start) : 0;
  std::fill(to + count, to + kBlock, 0.0);
  if (count == 0) return 0.0;
  return row_kernels().weigh(logits_ + start, count, scale_.largest, scale_.rate, to);
}

void Softmax::weigh_ids(const uint32_t* ids, size_t n, double* to) const {
  float logits[kBlock];
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start);
    for (size_t i = 0; i < count; ++i) {
      const uint32_t id = ids[start + i];
      logits[i] = id < width() ? logits_[id] : -std::numeric_limits<float>::infinity();
    }
    row_kernels().weigh(logits, count, scale_.largest, scale_.rate, to + start);
  }
}

Residual::Residual(const Mass& p, const Mass& q, double scale)
    : DenseMass(p.width()), p_(p), q_(q), p_scale_(scale * p.inverse()), q_scale_(q.inverse()) {
  double weights[kBlock];
  sums_.resize(num_blocks(width()));
  for (size_t block = 0; block < sums_.size(); ++block) total_ += sums_[block] = weigh_block(block, weights);
}

double Residual::weigh_block(size_t block, double* to) const {
  double taken[kBlock];
  p_.weigh_block(block, to);
  q_.weigh_block(block, taken);
  return row_kernels().leave(to, p_scale_, taken, q_scale_, kBlock, to);
}

void Residual::weigh_ids(const uint32_t* ids, size_t n, double* to) const {
  double taken[kBlock];
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t count = std::min(kBlock, n - start), whole = whole_lanes(count);
    std::fill(taken + count, taken + whole, 0.0);
    p_.weigh_ids(ids + start, count, to + start);
    q_.weigh_ids(ids + start, count, taken);
    row_kernels().leave(to + start, p_scale_, taken, q_scale_, whole, to + start);
  }
}

// -- few ids ----------------------------------------------------------------------------------------------------------

ListedMass::ListedMass(size_t width, std::vector<uint32_t> ids, std::vector<double> weights)
    : Mass(width), ids_(std::move(ids)), weights_(std::move(weights)) {
  weights_.resize(ids_.size());
  for (const double weight : weights_) total_ += weight;
}

uint32_t ListedMass::draw(double u) const {
  const double target = u * total_;
  double sum = 0.0;
  uint32_t token = 0;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (!(weights_[i] > 0.0)) continue;
    token = ids_[i];
    sum += weights_[i];
    if (sum > target) break;
  }
  return token;
}

uint32_t ListedMass::race(uint64_t key) const {
  Race race(key);
  for (size_t i = 0; i < ids_.size(); ++i) race.enter(ids_[i], weights_[i]);
  return race.winner();
}

void ListedMass::weights(double* to) const { std::copy(weights_.begin(), weights_.end(), to); }

double ListedMass::weigh_block(size_t block, double* to) const {
  std::fill(to, to + kBlock, 0.0);
  const size_t start = block * kBlock;
  double sum = 0.0;
  for (auto at = std::lower_bound(ids_.begin(), ids_.end(), start); at != ids_.end() && *at < start + kBlock; ++at)
    sum += to[*at - start] = weights_[size_t(at - ids_.begin())];
  return sum;
}

void ListedMass::weigh_ids(const uint32_t* ids, size_t n, double* to) const {
  auto at = ids_.begin();
  for (size_t i = 0; i < n; ++i) {
    at = std::lower_bound(at, ids_.end(), ids[i]);
    to[i] = at != ids_.end() && *at == ids[i] ? weights_[size_t(at - ids_.begin())] : 0.0;
  }
}

std::unique_ptr<Mass> ListedMass::minus(const Mass& q, double scale) const {
  std::vector<double> left(whole_lanes(ids_.size())), taken(left.size());
  std::copy(weights_.begin(), weights_.end(), left.begin());
  q.weigh_ids(ids_.data(), ids_.size(), taken.data());
  std::fill(taken.begin() + ptrdiff_t(ids_.size()), taken.end(), 0.0);
  row_kernels().leave(left.data(), scale * inverse(), taken.data(), q.inverse(), left.size(), left.data());
  return std::make_unique<ListedMass>(width(), ids_, std::move(left));
}

}  // namespace forerun
