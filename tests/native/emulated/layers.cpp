// Norms, positions, activations and steps.
#include <cmath>

#include "decoder/attention.h"
#include "kernels/table.h"
#include "records.h"

namespace emulated {

using namespace forerun;
using std::to_string;

namespace {

float number(size_t i, int kind) {
  static const float special[] = {0,    -0.0f, 1e-45f, -1e-38f,  88,        -88, 87.4f,      -87.4f,
                                  1e38f, -1e38f, INFINITY, -INFINITY, NAN, -87.33654f, -87.33655f, 88.00001f};
  switch (kind) {
    case 0: return normal() * 8;
    case 1: return any_float(false);
    case 2: return special[i % 16];
    case 3: return any_float(true);
    default: return normal() * 40;
  }
}

void steps(const std::string& name, const std::vector<float>& x, float longest) {
  std::vector<int16_t> to(x.size());
  const float step = kernels().to_steps(x.data(), x.size(), longest, to.data());
  put_floats(name + " step", &step, 1);
  if (step == step) put(name, to.data(), 2 * to.size());  // numbers without a step mean nothing
}

}  // namespace

void layers(Pool&) {
  const Kernels& k = kernels();
  for (size_t size : {1, 2, 14, 15, 16, 17, 30, 31, 32, 48, 64, 130, 576, 896, 1000, 1536})
    for (int kind = 0; kind < 5; ++kind) {
      const std::string name = "size" + to_string(size) + " kind" + to_string(kind) + " ";
      std::vector<float> x(size), y(size), out(size);
      for (size_t i = 0; i < size; ++i) {
        x[i] = number(i, kind);
        y[i] = kind == 4 ? any_float(false) : normal();
      }
      k.rms_norm(x.data(), y.data(), 1e-6f, size, out.data());
      put_floats(name + "rms_norm", out.data(), size);
      k.silu_multiply(x.data(), y.data(), size, out.data());
      put_floats(name + "silu", out.data(), size);
      k.gelu_tanh_multiply(x.data(), y.data(), size, out.data());
      put_floats(name + "gelu", out.data(), size);
      out = x;
      k.scale_and_cap(out.data(), size, 0.5f, 30.0f);
      put_floats(name + "scale and cap", out.data(), size);
      out = x;
      k.rotate(out.data(), y.data(), y.data() + size / 2, size / 2);
      put_floats(name + "rotate", out.data(), size);
      steps(name + "to_steps", x, 0.0f);
      steps(name + "to_steps long", x, kLongest);
    }
  std::vector<float> x(20000), one(x.size(), 1.0f), out(x.size());  // every step of exp's reduction
  for (size_t i = 0; i < x.size(); ++i) x[i] = -100.0f + 0.01f * float(i);
  k.silu_multiply(x.data(), one.data(), x.size(), out.data());
  put_floats("silu", out.data(), out.size());
  k.gelu_tanh_multiply(x.data(), one.data(), x.size(), out.data());
  put_floats("gelu", out.data(), out.size());
}

}  // namespace emulated
