#include "decoder/model.h"

#include <map>
#include <stdexcept>

namespace forerun {

namespace {

using MatrixOf = Matrix Layer::*;
using VectorOf = std::vector<float> Layer::*;

const std::map<std::string, MatrixOf>& matrices() {
  static const std::map<std::string, MatrixOf> all = {
      {"q", &Layer::q},       {"k", &Layer::k},   {"v", &Layer::v},       {"o", &Layer::o},
      {"gate", &Layer::gate}, {"up", &Layer::up}, {"down", &Layer::down},
  };
  return all;
}

const std::map<std::string, VectorOf>& vectors() {
  static const std::map<std::string, VectorOf> all = {
      {"attention_norm", &Layer::attention_norm},
      {"ffn_norm", &Layer::ffn_norm},
      {"attention_post_norm", &Layer::attention_post_norm},
      {"ffn_post_norm", &Layer::ffn_post_norm},
      {"q_bias", &Layer::q_bias},
      {"k_bias", &Layer::k_bias},
      {"v_bias", &Layer::v_bias},
      {"o_bias", &Layer::o_bias},
      {"gate_bias", &Layer::gate_bias},
      {"up_bias", &Layer::up_bias},
      {"down_bias", &Layer::down_bias},
      {"q_norm", &Layer::q_norm},
      {"k_norm", &Layer::k_norm},
  };
  return all;
}

// Splits "layers.12.q" into 12 and "q"; false where it does not look so.
bool split(const std::string& name, size_t* layer, std::string* rest) {
  const std::string prefix = "layers.";
  if (name.compare(0, prefix.size(), prefix) != 0) return false;
  const size_t dot = name.find('.', prefix.size());
  if (dot == std::string::npos || dot == prefix.size() || dot > prefix.size() + 9) return false;
  *layer = 0;
  for (size_t i = prefix.size(); i < dot; ++i) {
    if (name[i] < '0' || name[i] > '9') return false;
    *layer = *layer * 10 + size_t(name[i] - '0');
  }
  *rest = name.substr(dot + 1);
  return true;
}

std::string text(int64_t value) { return std::to_string(value); }

}  // namespace

Model::Model(const Description& description) : description(description) {
  check_description(description);
  layers.resize(size_t(description.num_layers));
}

Matrix& Model::matrix(const std::string& name) {
  if (name == "embedding") return embedding;
  if (name == "head") return head;
  size_t layer = 0;
  std::string rest;
  if (split(name, &layer, &rest) && layer < layers.size()) {
    const auto found = matrices().find(rest);
    if (found != matrices().end()) return layers[layer].*found->second;
  }
  throw std::invalid_argument("there is no matrix named " + name + " in a decoder of " + text(description.num_layers) +
                              " layers");
}

std::vector<float>& Model::vector(const std::string& name) {
  if (name == "norm") return norm;
  size_t layer = 0;
  std::string rest;
  if (split(name, &layer, &rest) && layer < layers.size()) {
    const auto found = vectors().find(rest);
    if (found != vectors().end()) return layers[layer].*found->second;
  }
  throw std::invalid_argument("there is no vector named " + name + " in a decoder of " + text(description.num_layers) +
                              " layers");
}

std::vector<std::pair<std::string, Matrix>> Model::all_matrices() const {
  std::vector<std::pair<std::string, Matrix>> all = {{"embedding", embedding}};
  if (head.num_outputs()) all.emplace_back("head", head);
  for (size_t i = 0; i < layers.size(); ++i)
    for (const auto& named : matrices())
      all.emplace_back("layers." + std::to_string(i) + "." + named.first, layers[i].*named.second);
  return all;
}

void Model::check() const {
  const Description& d = description;
  const auto check_matrix = [](const std::string& name, const Matrix& matrix, int64_t outputs, int64_t inputs) {
    if (matrix.num_outputs() == 0) throw std::invalid_argument("matrix " + name + " is missing");
    if (int64_t(matrix.num_outputs()) != outputs || int64_t(matrix.num_inputs()) != inputs)
      throw std::invalid_argument("matrix " + name + " is [" + text(int64_t(matrix.num_outputs())) + ", " +
                                  text(int64_t(matrix.num_inputs())) + "] where [" + text(outputs) + ", " +
                                  text(inputs) + "] is needed");
  };
  const auto check_vector = [](const std::string& name, const std::vector<float>& vector, int64_t size, bool optional) {
    if (vector.empty() && optional) return;
    if (vector.empty()) throw std::invalid_argument("vector " + name + " is missing");
    if (int64_t(vector.size()) != size)
      throw std::invalid_argument("vector " + name + " has " + text(int64_t(vector.size())) + " values where " +
                                  text(size) + " are needed");
  };
  check_matrix("embedding", embedding, d.num_embeddings, d.hidden_size);
  if (head.num_outputs()) check_matrix("head", head, d.vocabulary_size, d.hidden_size);
  if (!head.num_outputs() && d.vocabulary_size > d.num_embeddings)
    throw std::invalid_argument("a head that is tied to " + text(d.num_embeddings) + " embeddings cannot have " +
                                text(d.vocabulary_size) + " outputs");
  check_vector("norm", norm, d.hidden_size, false);
  const int64_t queries = d.num_heads * d.head_size, keys = d.num_kv_heads * d.head_size;
  for (size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = layers[i];
    const std::string at = "layers." + std::to_string(i) + ".";
    check_matrix(at + "q", layer.q, queries, d.hidden_size);
    check_matrix(at + "k", layer.k, keys, d.hidden_size);
    check_matrix(at + "v", layer.v, keys, d.hidden_size);
    check_matrix(at + "o", layer.o, d.hidden_size, queries);
    check_matrix(at + "gate", layer.gate, d.intermediate_size, d.hidden_size);
    check_matrix(at + "up", layer.up, d.intermediate_size, d.hidden_size);
    check_matrix(at + "down", layer.down, d.hidden_size, d.intermediate_size);
    for (const char* name : {"attention_norm", "attention_post_norm", "ffn_norm", "ffn_post_norm"}) {
      const VectorOf norm_of = vectors().at(name);  // a norm that only some layers have was forgotten
      const bool is_expected = !(layers[0].*norm_of).empty();
      check_vector(at + name, layer.*norm_of, d.hidden_size, !is_expected);
      if (!is_expected && !(layer.*norm_of).empty())
        throw std::invalid_argument("vector layers.0." + std::string(name) + " is missing: layer " +
                                    std::to_string(i) + " has one");
    }
    check_vector(at + "q_bias", layer.q_bias, queries, true);
    check_vector(at + "k_bias", layer.k_bias, keys, true);
    check_vector(at + "v_bias", layer.v_bias, keys, true);
    check_vector(at + "o_bias", layer.o_bias, d.hidden_size, true);
    check_vector(at + "gate_bias", layer.gate_bias, d.intermediate_size, true);
    check_vector(at + "up_bias", layer.up_bias, d.intermediate_size, true);
    check_vector(at + "down_bias", layer.down_bias, d.hidden_size, true);
    const auto check_head_norm = [&](const std::string& name, const std::vector<float>& vector, int64_t width) {
      if (int64_t(vector.size()) != width) check_vector(name, vector, d.head_size, true);
    };
    check_head_norm(at + "q_norm", layer.q_norm, queries);
    check_head_norm(at + "k_norm", layer.k_norm, keys);
  }
}

int64_t Model::num_bytes() const {
  size_t bytes = head.num_outputs() ? head.num_bytes()
                                    : embedding.num_bytes() / size_t(description.num_embeddings) *
                                          size_t(description.vocabulary_size);
  for (const Layer& layer : layers)
    for (const auto& named : matrices()) bytes += (layer.*named.second).num_bytes();
  return int64_t(bytes);
}

}  // namespace forerun
