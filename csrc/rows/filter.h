// Temperature, top-k, top-p and min-p: from a row of logits to the mass that a token is drawn from.
//
// Nothing is sorted but what the last kept token is compared with: thresholds are found by selection (top-k) and by
// sums of mass over bins of weights (top-p). Ties are broken as sampling/filters.py breaks them.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "rows/mass.h"

namespace forerun {

struct Filters {
  size_t top_k;  // 0: off
  double top_p;  // 1: off
  double min_p;  // 0: off
};

// What at least one filter leaves of `logits` [width] without NaN, the largest of them finite and in `scale`.
std::unique_ptr<Mass> filtered(const float* logits, size_t width, Scale scale, Filters filters);

// The k-th largest of `values` [n], 1 <= k <= n.
float kth_largest(const float* values, size_t n, size_t k);

// Ids of values of at least this, ascending.
std::vector<uint32_t> ids_at_least(const float* values, size_t n, float least);

// (rank of a token, from 1; the ids of the `num_top` largest values, largest first). Ties are ranked by the lower id,
// and values of minus infinity are not listed.
std::pair<size_t, std::vector<uint32_t>> ranked(const float* values, size_t n, uint32_t token, size_t num_top);

// log of the sum of e^(logit - largest).
double log_total(const float* logits, size_t width, double largest);

}  // namespace forerun
