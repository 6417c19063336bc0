// The row processor: its kernels, and masses, draws and races made of them.
#include <cmath>

#include "records.h"
#include "rows/filter.h"
#include "rows/mass.h"
#include "rows/race.h"
#include "rows/table.h"

namespace emulated {

using namespace forerun;
using std::to_string;

namespace {

float logit(int kind) {
  switch (kind) {
    case 0: return normal() * 3;
    case 1: return any_float(false);
    case 2: return any_float(true);
    case 3: return below(5) ? -INFINITY : normal();
    case 4: return normal() * 400;
    case 5: return std::round(normal());
    case 6: return -INFINITY;
    default: return 1e30f * normal();
  }
}

void search(const std::string& name, const std::vector<float>& x, size_t n, float top, double rate, int kind) {
  const RowKernels& k = row_kernels();
  std::vector<uint32_t> ids(n + 16);
  for (float least : {top, top - 1.0f, 0.0f, 1.5f, -INFINITY}) {
    size_t count = k.find_at_least(x.data(), n, least, 77, ids.data());
    put(name + "find", ids.data(), 4 * count);
    count = k.count_at_least(x.data(), n, least);
    put_double(name + "count", double(count));
  }
  if (kind == 1 || kind == 2 || kind == 6) return;  // a race among infinities or nothing is not run
  for (float limit : {1e-4f, 3e-3f, 0.1f, 0.9f, 1e-30f}) {
    const uint64_t key = bits64();
    const size_t count = k.find_fast(x.data(), n, top, float(rate), limit, key, uint32_t(below(100000)), ids.data());
    put(name + "fast", ids.data(), 4 * count);
  }
}

void weigh(const std::string& name, const std::vector<float>& x, size_t n, float top, double rate, int kind) {
  const RowKernels& k = row_kernels();
  const size_t whole = (n + 15) / 16 * 16;
  std::vector<double> p(whole), q(whole), left(whole);
  put_double(name + "weigh sum", k.weigh(x.data(), n, double(top), rate, p.data()));
  put_doubles(name + "weigh", p.data(), whole);
  float largest = 0;
  put_double(name + "survey sum", k.survey(x.data(), n, rate, &largest));
  if (kind != 2 && largest == largest) put_floats(name + "survey largest", &largest, 1);
  const std::vector<float> y = normals(n + 16, 3);
  k.weigh(y.data(), n, 9.0, rate, q.data());
  put_double(name + "leave sum", k.leave(p.data(), 0.37, q.data(), 0.11, whole, left.data()));
  put_doubles(name + "leave", left.data(), whole);
}

void masses(size_t width) {
  const std::string name = "mass" + to_string(width) + " ";
  const std::vector<float> a = normals(width, 2.5f), b = normals(width, 2.5f);
  uint32_t best = 0;
  for (size_t i = 0; i < width; ++i)
    if (a[i] > a[best]) best = uint32_t(i);
  const double top = a[best];
  const Softmax p(a.data(), width, 1.0 / 0.8), q(b.data(), width, 1.0);
  const auto left = p.minus(q, 0.7);
  put_double(name + "total", p.total());
  put_double(name + "log", log_total(a.data(), width, top));
  put_double(name + "left", left->total());
  std::vector<uint32_t> draws;
  for (double u : {0.0, 0.1, 0.5, 0.9, 0.999999}) {
    draws.push_back(p.draw(u));
    draws.push_back(left->draw(u));
  }
  for (uint64_t key = 0; key < 20; ++key) {
    draws.push_back(p.race(key));
    draws.push_back(race_of_logits(a.data(), width, {top, 1.2}, best, key));
  }
  for (const Filters& filters : {Filters{50, 1, 0}, Filters{0, .9, 0}, Filters{0, 1, .02}, Filters{200, .8, .01},
                                 Filters{0, .9999, 0}}) {
    const auto kept = filtered(a.data(), width, {top, 1.25}, filters);
    std::vector<double> weights(kept->ids().size() + 16);
    kept->weights(weights.data());
    put(name + "ids", kept->ids().data(), 4 * kept->ids().size());
    put_doubles(name + "weights", weights.data(), kept->ids().size());
    for (uint64_t key = 0; key < 5; ++key) {
      draws.push_back(kept->race(key));
      draws.push_back(kept->draw(0.2 * double(key)));
    }
  }
  put(name + "draws", draws.data(), 4 * draws.size());
}

}  // namespace

void rows(Pool&) {
  for (size_t n : {1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 100, 1000, 1023, 1024})
    for (int kind = 0; kind < 8; ++kind) {
      std::vector<float> x(n + 16);
      float top = -INFINITY;
      for (size_t i = 0; i < n; ++i) {
        x[i] = logit(kind);
        if (x[i] > top) top = x[i];
      }
      for (double rate : {1.0, 1.0 / 0.7, 20.0, 1.0 / 3.0}) {
        const std::string name = "rows n" + to_string(n) + " kind" + to_string(kind) + " rate" + to_string(rate) + " ";
        weigh(name, x, n, top, rate, kind);
        search(name, x, n, top, rate, kind);
      }
    }
  for (size_t width : {33, 1500, 5003}) masses(width);
}

}  // namespace emulated
