#include "decoder/description.h"

#include <cmath>
#include <stdexcept>
#include <string>

namespace forerun {

namespace {

constexpr float kMostCap = 1e30f;  // of a softcap: what it is multiplied by still fits a float

[[noreturn]] void refuse(const std::string& fact) { throw std::invalid_argument(fact); }

std::string text(int64_t value) { return std::to_string(value); }

void check_sizes(const Description& d) {
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1 || value > (int64_t(1) << 31))
      refuse(std::string(name) + " is " + text(value) + ": it must be 1 to 2^31");
  };
  positive("num_layers", d.num_layers);
  positive("hidden_size", d.hidden_size);
  positive("intermediate_size", d.intermediate_size);
  positive("num_heads", d.num_heads);
  positive("num_kv_heads", d.num_kv_heads);
  positive("head_size", d.head_size);
  positive("num_embeddings", d.num_embeddings);
  positive("vocabulary_size", d.vocabulary_size);
  positive("context_length", d.context_length);
  if (d.num_heads % d.num_kv_heads)
    refuse(text(d.num_heads) + " heads cannot share " + text(d.num_kv_heads) + " KV heads");
  if (d.head_size % 2) refuse("head_size is " + text(d.head_size) + ": it must be even");
}

void check_scales(const Description& d) {
  const auto finite = [](const std::string& name, float value) {
    if (!std::isfinite(value)) refuse(name + " is " + std::to_string(value) + ": it must be a finite number");
  };
  finite("attention_scale", d.attention_scale);
  finite("embedding_scale", d.embedding_scale);
  finite("residual_scale", d.residual_scale);
  finite("logit_scale", d.logit_scale);
  const auto cap = [](const char* name, float value) {
    if (!(value >= 0.0f && value <= kMostCap))
      refuse(std::string(name) + " is " + std::to_string(value) + ": it must be 0 (none) to 1e30");
  };
  cap("attention_softcap", d.attention_softcap);
  cap("logit_softcap", d.logit_softcap);
  if (!(d.epsilon >= 0.0f) || std::isinf(d.epsilon))
    refuse("epsilon is " + std::to_string(d.epsilon) + ": it must be a finite number that is not negative");
}

void check_rotaries(const Description& d) {
  for (size_t i = 0; i < d.rotaries.size(); ++i) {
    const RotaryTable& table = d.rotaries[i];
    const std::string of = "rotaries[" + std::to_string(i) + "]";
    if (table.frequencies.empty() || int64_t(table.frequencies.size()) > d.head_size / 2)
      refuse(of + " has " + std::to_string(table.frequencies.size()) + " frequencies where heads of " +
             text(d.head_size) + " take 1 to " + text(d.head_size / 2));
    if (!std::isfinite(table.scale)) refuse("the scale of " + of + " is not a finite number");
    for (double frequency : table.frequencies)
      if (!(std::fabs(frequency) * double(d.context_length) < 1073741824.0))
        refuse("a rotary frequency of " + of + " is not a usable number");
  }
}

void check_layers(const Description& d) {
  const auto each = [&](const std::string& name, const std::vector<int64_t>& values, int64_t least, int64_t most,
                        const std::string& meaning) {
    if (int64_t(values.size()) != d.num_layers)
      refuse(name + " has " + std::to_string(values.size()) + " values where " + text(d.num_layers) +
             " layers need one each");
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] < least || values[i] > most)
        refuse(name + "[" + std::to_string(i) + "] is " + text(values[i]) + ": " + meaning);
  };
  const int64_t num_tables = int64_t(d.rotaries.size());
  each("layer_rotaries", d.layer_rotaries, -1, num_tables - 1,
       "it must be -1 (none) or name one of " + text(num_tables) + " rotaries");
  each("layer_windows", d.layer_windows, 0, INT64_MAX, "it must be 0 (none) or a number of tokens");
}

}  // namespace

void check_description(const Description& description) {
  check_sizes(description);
  check_scales(description);
  check_rotaries(description);
  check_layers(description);
}

}  // namespace forerun
