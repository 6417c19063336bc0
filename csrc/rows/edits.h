// Changes to a row of logits before its temperature, in place. Ids at or beyond the row's width are passed over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace forerun {

// Ids of a row, as numpy has them.
struct Ids {
  const int64_t* data;
  size_t size;
};

template <class Change>
void change_each(Ids ids, size_t width, const Change& change) {
  for (size_t i = 0; i < ids.size; ++i)
    if (ids.data[i] >= 0 && uint64_t(ids.data[i]) < width) change(size_t(ids.data[i]), i);
}

// Divided by the penalty where positive, multiplied where negative.
inline void penalise_repetition(float* logits, size_t width, Ids ids, float penalty) {
  change_each(ids, width, [&](size_t id, size_t) {
    logits[id] = logits[id] < 0.0f ? logits[id] * penalty : logits[id] / penalty;
  });
}

inline void subtract(float* logits, size_t width, Ids ids, const double* amounts) {
  change_each(ids, width, [&](size_t id, size_t i) { logits[id] -= float(amounts[i]); });
}

inline void rule_out(float* logits, size_t width, Ids ids) {
  change_each(ids, width, [&](size_t id, size_t) { logits[id] = -std::numeric_limits<float>::infinity(); });
}

// Rules out ids whose byte in `mask` [width] is 0.
inline void keep_only(float* logits, size_t width, const uint8_t* mask) {
  const float out = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < width; ++i) logits[i] = mask[i] ? logits[i] : out;
}

}  // namespace forerun
