// Rounding float weights to Q8_0 while they are packed, bit for bit as the gguf package does.
//
// d = largest magnitude / 127, stored as float16; codes from the unrounded d, halves away from zero.
#include <cmath>
#include <stdexcept>

#include "core/half.h"
#include "weights/codes.h"
#include "weights/matrix.h"

namespace forerun {

void round_to_q8_0(const float* weights, size_t num_groups, Codes& to) {
  for (size_t g = 0; g < num_groups; ++g, weights += kGroup) {
    float largest = 0.0f, poison = 0.0f;
    for (size_t i = 0; i < kGroup; ++i) {
      const float magnitude = std::fabs(weights[i]);
      largest = magnitude > largest ? magnitude : largest;
      poison += weights[i] * 0.0f;  // NaN from the first weight that is none or infinite
    }
    const float d = largest / 127.0f;
    // No code without a number: converting a NaN or what is too large to an integer is undefined.
    const float inverse = d > 0.0f && poison == 0.0f ? 1.0f / d : 0.0f;
    const bool is_usable = inverse > 0.0f && std::isfinite(inverse);
    to.d[g] = float_to_half(d + poison);
    for (size_t i = 0; i < kGroup; ++i) {
      const float magnitude = is_usable ? std::fabs(weights[i] * inverse) : 0.0f;
      const int whole = int(magnitude);
      const int rounded = whole + int(magnitude - float(whole) >= 0.5f);
      to.code[kGroup * g + i] = uint8_t(128 + (weights[i] < 0.0f ? -rounded : rounded));
    }
  }
}

Rounding rounding_named(const std::string& name) {
  if (name == "none") return Rounding::kNone;
  if (name == "q4") return Rounding::kQ4;
  if (name == "q8_0") return Rounding::kQ8_0;
  if (name == "bf16") return Rounding::kBF16;
  throw std::invalid_argument("weights are not rounded to '" + name + "' but to none, q4, q8_0 or bf16");
}

}  // namespace forerun
