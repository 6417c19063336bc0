// Ids of a piece of a row that pass a test, which nearly all of them fail.
#pragma once

namespace forerun::FORERUN_ISA {
namespace {

FORERUN_INLINE size_t append(uint32_t found, uint32_t first, uint32_t* to, size_t count) {
  for (; found; found &= found - 1) to[count++] = first + uint32_t(__builtin_ctz(found));
  return count;
}

size_t find_at_least(const float* x, size_t n, float least, uint32_t first, uint32_t* to) {
  const F32 limit = broadcast(least);
  size_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes)
    if (const uint32_t found = at_least(load(x + i), limit)) count = append(found, first + uint32_t(i), to, count);
  for (; i < n; ++i)
    if (x[i] >= least) to[count++] = first + uint32_t(i);
  return count;
}

size_t count_at_least(const float* x, size_t n, float least) {
  const F32 limit = broadcast(least);
  size_t count = 0, i = 0;
  for (; i + kLanes <= n; i += kLanes) count += size_t(__builtin_popcount(at_least(load(x + i), limit)));
  for (; i < n; ++i) count += x[i] >= least;
  return count;
}

// 1 - u of 24 bits, in units of 2^-24 and rounded down: what is compared is never more than the real one.
FORERUN_INLINE F32 complement(U64 words) {
  words = multiply(words ^ shift_right(words, 30), kMultiplier1);
  words = multiply(words ^ shift_right(words, 27), kMultiplier2);
  return broadcast(16777215.0f) - top_24(words);  // the last step of the mixer leaves the top 31 bits alone
}

size_t find_fast(const float* x, size_t n, float largest, float rate, float limit, uint64_t key, uint32_t first,
                 uint32_t* to) {
  // Halves, so that the difference of two finite logits is finite.
  const F32 half = broadcast(0.5f), top = broadcast(-0.5f * largest);
  const F32 scale = broadcast(2.0f * 1.44269504f * rate), least = broadcast(-126.0f);
  const F32 units = broadcast(limit * 16777216.0f);
  const F32 hopeless = broadcast(1.0f / 536870912.0f);  // 1 - u is never below 2^-53
  uint64_t offsets[kLanes];
  for (size_t i = 0; i < kLanes; ++i) offsets[i] = key + (uint64_t(first) + i + 1) * kGamma;
  U64 words = load_u64(offsets);
  const U64 step = broadcast_u64(kLanes * kGamma);
  size_t count = 0;
  for (size_t i = 0; i < n; i += kLanes, words = words + step) {
    const F32 logits = i + kLanes <= n ? load(x + i) : load_tail(x + i, n - i);
    const F32 reach = power_above(max(fma(logits, half, top) * scale, least)) * units;
    if (at_least(reach, hopeless) == 0) continue;
    if (const uint32_t found = at_least(reach, complement(words))) {
      const uint32_t there = n - i < kLanes ? (1u << (n - i)) - 1 : 0xFFFF;
      count = append(found & there, first + uint32_t(i), to, count);
    }
  }
  return count;
}

}  // namespace
}  // namespace forerun::FORERUN_ISA
