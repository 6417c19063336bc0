// Probability mass over the ids of a row, known up to a factor.
//
// A row after a softmax is never written out: it is its logits, the sums of its blocks and their total, and a draw
// looks into one block. Filters leave few ids, kept as lists. What remains of a row after another's mass is taken away
// is again a mass. Every number is a function of the row alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "rows/table.h"

namespace forerun {

// What turns a logit into a weight: e^((x - largest) * rate), rate = 1 / temperature.
struct Scale {
  double largest, rate;
};

// Immutable once made. Logits are not copied: they must outlive every mass made of them.
class Mass {
 public:
  explicit Mass(size_t width) : width_(width) {}
  virtual ~Mass() = default;
  Mass(const Mass&) = delete;
  Mass& operator=(const Mass&) = delete;

  size_t width() const { return width_; }   // ids from here on have no mass
  double total() const { return total_; }   // of the weights
  double inverse() const { return 1.0 / total_; }
  double prob(uint32_t id) const;
  // The first id at which the running sum of weights exceeds u * total, u in [0, 1); never one without mass.
  virtual uint32_t draw(double u) const = 0;
  // The id whose log weight plus Gumbel noise of (key, id) is largest.
  virtual uint32_t race(uint64_t key) const = 0;
  // The ids that may have mass, ascending; none stands for all below the width. Their weights.
  virtual const std::vector<uint32_t>& ids() const = 0;
  virtual void weights(double* to) const = 0;
  // max(scale * this - q, 0) in probabilities, of ids below this width.
  virtual std::unique_ptr<Mass> minus(const Mass& q, double scale) const = 0;

  // Weights of ids block * kBlock + (0 .. kBlock - 1), 0 beyond the width, and their sum.
  virtual double weigh_block(size_t block, double* to) const = 0;
  // Weights of any ascending ids; room for n rounded up to kLanes.
  virtual void weigh_ids(const uint32_t* ids, size_t n, double* to) const = 0;

 protected:
  double total_ = 0.0;

 private:
  size_t width_;
};

// Mass on all ids of a row, as sums of blocks.
class DenseMass : public Mass {
 public:
  using Mass::Mass;
  uint32_t draw(double u) const override;
  uint32_t race(uint64_t key) const override;
  const std::vector<uint32_t>& ids() const override;
  void weights(double* to) const override;
  std::unique_ptr<Mass> minus(const Mass& q, double scale) const override;

 protected:
  std::vector<double> sums_;  // of blocks; they and their total are set by the classes' constructors
};

// All of a row of logits [width] at temperature 1 / rate. The total is NaN where the largest logit is not finite or one
// is NaN: no token can be chosen then.
class Softmax final : public DenseMass {
 public:
  Softmax(const float* logits, size_t width, double rate);
  double weigh_block(size_t block, double* to) const override;
  void weigh_ids(const uint32_t* ids, size_t n, double* to) const override;

 private:
  const float* logits_;
  Scale scale_;
};

// max(scale * p - q, 0) where p is dense. Both must outlive it.
class Residual final : public DenseMass {
 public:
  Residual(const Mass& p, const Mass& q, double scale);
  double weigh_block(size_t block, double* to) const override;
  void weigh_ids(const uint32_t* ids, size_t n, double* to) const override;

 private:
  const Mass& p_;
  const Mass& q_;
  double p_scale_, q_scale_;
};

// Mass on a list of ids, ascending.
class ListedMass final : public Mass {
 public:
  // `weights` may be longer than `ids`.
  ListedMass(size_t width, std::vector<uint32_t> ids, std::vector<double> weights);
  uint32_t draw(double u) const override;
  uint32_t race(uint64_t key) const override;
  const std::vector<uint32_t>& ids() const override { return ids_; }
  void weights(double* to) const override;
  std::unique_ptr<Mass> minus(const Mass& q, double scale) const override;
  double weigh_block(size_t block, double* to) const override;
  void weigh_ids(const uint32_t* ids, size_t n, double* to) const override;

 private:
  std::vector<uint32_t> ids_;
  std::vector<double> weights_;
};

}  // namespace forerun
