// Attention: tiles of all sizes, trees' tails, chunks at once and merged.
#include "decoder/attention.h"

#include <cmath>
#include <memory>
#include <new>

#include "kernels/table.h"
#include "records.h"

namespace emulated {

using namespace forerun;
using std::to_string;

namespace {

// Kinds: 0 normal, 1 large, 2 at the ends of the range, 3 of many magnitudes with one NaN.
std::vector<float> vector_of(size_t head_size, int kind, float large) {
  const float amount = kind == 1 ? large : kind == 3 ? std::ldexp(1.0f, int(below(40)) - 20) : 1.0f;
  std::vector<float> x = normals(head_size, amount);
  if (kind == 2)
    for (float& v : x) v = v > 0 ? 3.0f : -3.0f;
  return x;
}

struct Free {
  void operator()(int16_t* p) const { ::operator delete(p, std::align_val_t(64)); }
};

// One head's keys and values, written as the cache does.
struct Cache {
  Cache(size_t head_size, size_t num_pages, int kind) {
    const size_t values = keys_size(head_size), page = values + values_size(head_size), total = (num_pages + 1) * page;
    memory.reset(static_cast<int16_t*>(::operator new(2 * total + 128, std::align_val_t(64))));
    for (size_t i = 0; i < total; ++i) memory.get()[i] = 0;
    for (size_t p = 0; p < num_pages; ++p) pages.push_back(memory.get() + p * page);
    pages.push_back(pages.back());
    std::vector<int16_t> k(head_size), v(head_size);
    for (size_t t = 0; t < num_pages * kPageTokens; ++t) {
      int16_t* at = memory.get() + t / kPageTokens * page;
      const size_t slot = t % kPageTokens;
      const std::vector<float> key = vector_of(head_size, kind, 6.0f);
      std::vector<float> value = vector_of(head_size, kind, 6.0f);
      if (kind == 2) value.assign(head_size, -3.0f);
      if (kind == 3 && t == 200) value[head_size / 2] = NAN;
      reinterpret_cast<float*>(at)[slot] = kernels().to_steps(key.data(), head_size, kLongest, k.data());
      reinterpret_cast<float*>(at + values)[slot] = kernels().to_steps(value.data(), head_size, 0.0f, v.data());
      for (size_t d = 0; d < head_size; ++d) {
        at[kStepsSize + key_offset(slot, head_size) + d / 2 * 32 + d % 2] = k[d];
        at[values + kStepsSize + value_offset(slot) + d / 16 * 16 * kPageTokens + d % 16 * 2] = v[d];
      }
    }
  }
  std::unique_ptr<int16_t, Free> memory;
  std::vector<const int16_t*> pages;
};

void attend_rows(const std::string& name, const Cache& cache, size_t head, size_t group, size_t positions, int kind,
                 size_t num_rows, bool with_tails) {
  const Kernels& k = kernels();
  std::vector<AttentionRow> rows(num_rows);
  std::vector<std::vector<uint32_t>> slots(num_rows);
  const size_t shared = positions - 24 - below(8);
  for (size_t r = 0; r < num_rows; ++r) {
    if (with_tails) {
      for (size_t i = 0, slot = shared, n = 1 + below(6); i < n; ++i, slot += 1 + below(5))
        slots[r].push_back(uint32_t(slot));
      rows[r] = {shared + slots[r].size(), shared, slots[r].data()};
    } else {
      const size_t sees = positions - num_rows + r + 1 - (r % 2 ? below(290) : 0);
      rows[r] = {sees, sees, nullptr, r % 3 == 2 ? below(sees) : 0};  // every third has a window
    }
  }
  const size_t stride = group * head, chunks = (positions + kChunkTokens - 1) / kChunkTokens;
  std::vector<int16_t> queries(num_rows * stride);
  std::vector<float> steps(num_rows * group), out(num_rows * stride), apart(out.size());
  for (size_t i = 0; i < num_rows * group; ++i)
    steps[i] = k.to_steps(vector_of(head, kind == 3 ? 0 : kind, 4.0f).data(), head, kLongest, &queries[i * head]);
  std::vector<float> scratch(scratch_floats(head, 128) + 16), partials(num_rows * group * chunks * record_floats(head));
  float* aligned = reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(scratch.data()) + 63) / 64 * 64);
  AttentionJob job{};
  job.head_size = head;
  job.group = group;
  job.scale = 1.0f / std::sqrt(float(head));
  job.softcap = kind == 1 ? 2.0f : 0.0f;
  job.rows = rows.data();
  job.num_rows = num_rows;
  job.queries = queries.data();
  job.query_stride = job.out_stride = stride;
  job.query_steps = steps.data();
  job.step_stride = group;
  job.out = out.data();
  job.pages = cache.pages.data();
  job.values = keys_size(head);
  job.last_chunk = job.num_chunks = chunks;
  job.scratch = aligned;
  k.attend(job);
  put_floats(name, out.data(), out.size());
  job.out = apart.data();
  job.partials = partials.data();
  for (size_t chunk = 0; chunk < chunks; ++chunk) {
    job.first_chunk = chunk;
    job.last_chunk = chunk + 1;
    k.attend(job);
  }
  k.merge_attention(job);
  put_floats(name + " merged", apart.data(), apart.size());
}

}  // namespace

void attention(Pool&) {
  for (size_t head : {2, 16, 20, 50, 64, 80, 128, 256})
    for (int kind = 0; kind < 4; ++kind) {
      const size_t positions = head == 64 || head == 20 ? 600 : 330;
      const size_t group = head == 64 ? 7 : head == 2 ? 13 : 1 + below(6);
      const Cache cache(head, (positions + 127) / kPageTokens + 1, kind);
      for (size_t num_rows : {1, 2, 3, 4, 5, 7, 12, 13}) {
        if ((kind > 0 && num_rows > 4) || (head > 80 && num_rows > 7)) break;
        for (bool with_tails : {false, true})
          attend_rows("attention head" + to_string(head) + " kind" + to_string(kind) + " rows" + to_string(num_rows) +
                          " group" + to_string(group) + (with_tails ? " tails" : ""),
                      cache, head, group, positions, kind, num_rows, with_tails);
      }
    }
}

}  // namespace emulated
