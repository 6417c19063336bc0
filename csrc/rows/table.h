// The row processor's kernels of one instruction set. All tables compute the same bits (lanes/lanes.h).
//
// They work on pieces of a row of logits; what the pieces mean is the business of mass.h, filter.h and race.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

constexpr size_t kLanes = 16;
constexpr size_t kBlock = 1024;  // ids whose weights are added up before they meet others'; a draw looks at one block

// Weights of at most e^this are 0: anything they are multiplied with or divided by here leaves a normal number. The
// array reference (sampling/filters.py) has the same limit.
constexpr double kLeastExponent = -690.0;

struct RowKernels {
  const char* name;

  // to[i] = e^((x[i] - largest) * rate), exactly 0 below e^kLeastExponent, for i < n rounded up to kLanes (0 from n
  // on). Returns their sum: lane by lane, then across.
  double (*weigh)(const float* x, size_t n, double largest, double rate, double* to);
  // The largest of x, and the sum of weights relative to it: one pass over memory for a row whose largest is not known.
  // NaN and infinity make the sum NaN; where nothing is above minus infinity it is 0.
  double (*survey)(const float* x, size_t n, double rate, float* largest);
  // to[i] = max(p[i] * a - q[i] * b, 0) for n ids, a multiple of kLanes; returns the sum.
  double (*leave)(const double* p, double a, const double* q, double b, size_t n, double* to);

  // Ids first + i with x[i] >= least, ascending, into `to` (room for n). Returns how many.
  size_t (*find_at_least)(const float* x, size_t n, float least, uint32_t first, uint32_t* to);
  size_t (*count_at_least)(const float* x, size_t n, float least);
  // Ids first + i that may reach (1 - u) <= limit * e^((x[i] - largest) * rate), u the uniform of (key, id): all that
  // do for a limit smaller by 1e-3, and few others. At most kBlock ids.
  size_t (*find_fast)(const float* x, size_t n, float largest, float rate, float limit, uint64_t key, uint32_t first,
                      uint32_t* to);
};

// The table in use: that of chosen_isa() (kernels/isa.h).
const RowKernels& row_kernels();

}  // namespace forerun
