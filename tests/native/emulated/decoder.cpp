// Whole decoders of every format, and of every feature: a prompt beside another sequence, a tree, and what is kept of it.
#include "decoder/decoder.h"

#include <cmath>

#include "records.h"

namespace emulated {

using namespace forerun;

namespace {

constexpr size_t kVocabulary = 60;

void make(const Format& format, bool has_features, Pool& pool, Decoder& decoder) {
  auto matrix = [&](const std::string& name, size_t outputs) {
    const auto stored = random_stored(format, outputs, 256, 0);
    decoder.set_matrix(name, Matrix::pack(format.stored, stored.data(), outputs, 256, nullptr, pool));
  };
  matrix("embedding", kVocabulary);
  matrix("head", kVocabulary);
  decoder.set_vector("norm", normals(256));
  for (const char* layer : {"layers.0.", "layers.1."}) {
    const std::string at = layer;
    for (const char* name : {"q", "o", "gate", "up", "down"}) matrix(at + name, 256);
    for (const char* name : {"k", "v"}) matrix(at + name, 128);
    for (const char* name : {"attention_norm", "ffn_norm", "q_bias"}) decoder.set_vector(at + name, normals(256));
    for (const char* name : {"q_norm", "k_norm"}) decoder.set_vector(at + name, normals(64));
    if (!has_features) continue;
    for (const char* name : {"attention_post_norm", "ffn_post_norm"}) decoder.set_vector(at + name, normals(256));
  }
  decoder.finish();
}

// `has_features`: a window, positions for part of a head, none in the other layer, caps, scales, GELU, norms behind.
void run(const Format& format, bool has_features, Pool& pool) {
  Description description;
  description.num_layers = 2;
  description.hidden_size = description.intermediate_size = 256;
  description.num_heads = 4;
  description.num_kv_heads = 2;
  description.head_size = 64;
  description.num_embeddings = description.vocabulary_size = int64_t(kVocabulary);
  description.context_length = 1024;
  description.attention_scale = 0.125f;
  description.rotaries.resize(1);
  for (int i = 0; i < (has_features ? 24 : 32); ++i)
    description.rotaries[0].frequencies.push_back(std::ldexp(1.0, -i / 3));
  description.layer_rotaries = {0, has_features ? -1 : 0};
  description.layer_windows = {has_features ? 33 : 0, 0};
  if (has_features) {
    description.activation = Activation::kGeluTanh;
    description.attention_softcap = 5.0f;
    description.logit_softcap = 3.0f;
    description.embedding_scale = 16.0f;
    description.residual_scale = 0.7f;
    description.logit_scale = 0.3f;
  }
  Decoder decoder(description);
  make(format, has_features, pool, decoder);

  const bool is_long = has_features || format.stored == Stored::kQ4_K;
  const int64_t length = is_long ? 280 : 70;  // once beyond a chunk of attention
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < length; ++i) tokens.push_back(int32_t(below(kVocabulary)));
  const std::string name = std::string(has_features ? "decoder with features " : "decoder ") + format.name;
  auto forward = [&](const char* part, size_t num_rows, const std::vector<SpanOf>& spans) {
    std::vector<float> out(kVocabulary * num_rows);
    decoder.forward(spans, out.data(), pool);
    put_floats(name + part, out.data(), out.size());
  };
  decoder.begin(0);
  decoder.begin(1);
  forward(" prompt", 23, {{0, 0, tokens.data(), length, 3, nullptr}, {1, 0, tokens.data(), 20, 20, nullptr}});
  const int32_t tree[] = {1, 2, 3, 4, 5, 6}, parents[] = {-1, 0, 0, 1, 2, 1};
  forward(" tree", 7, {{0, length, tree, 6, 6, parents}, {1, 20, tokens.data(), 1, 1, nullptr}});
  decoder.keep(0, length + 1, {2, 4});
  forward(" kept", 1, {{0, length + 3, tokens.data(), 1, 1, nullptr}});
}

}  // namespace

void decoders(Pool& pool) {
  for (const Format& format : formats()) run(format, false, pool);
  for (const Format& format : formats())
    if (format.stored == Stored::kQ8_0) run(format, true, pool);
}

}  // namespace emulated
