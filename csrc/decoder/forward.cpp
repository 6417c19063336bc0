#include "decoder/forward.h"

#include <algorithm>
#include <cstring>

#include "kernels/table.h"

namespace forerun {

namespace {

// Rows' small work: on the caller's thread for up to `few` rows, which cost less than a loop of the pool.
template <class Body>
void over_rows(size_t num_rows, size_t few, Pool& pool, const Body& body) {
  if (num_rows <= few || pool.num_threads() == 1) {
    for (size_t row = 0; row < num_rows; ++row) body(row);
    return;
  }
  const size_t num_pieces = std::min(num_rows, 4 * size_t(pool.num_threads()));
  pool.run(int64_t(num_pieces), [&](int64_t piece) {
    const size_t end = num_rows * size_t(piece + 1) / num_pieces;
    for (size_t row = num_rows * size_t(piece) / num_pieces; row < end; ++row) body(row);
  });
}

const float* or_none(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

int16_t* scratch_steps(size_t head_size) {
  static thread_local std::vector<int16_t> steps;
  if (steps.size() < head_size) steps.resize(head_size);
  return steps.data();
}

// One token's keys and values in a page's part of one layer and head (decoder/attention.h has the layout).
void put_keys(const float* x, size_t head_size, size_t slot, int16_t* to) {
  int16_t* steps = scratch_steps(head_size);
  const float step = kernels().to_steps(x, head_size, kLongest, steps);
  std::memcpy(to + 2 * slot, &step, sizeof step);
  to += kStepsSize + key_offset(slot, head_size);
  for (size_t d = 0; d < head_size; d += 2) std::memcpy(to + d * 16, steps + d, 2 * sizeof(int16_t));
}

void put_values(const float* x, size_t head_size, size_t slot, int16_t* to) {
  int16_t* steps = scratch_steps(head_size);
  const float step = kernels().to_steps(x, head_size, 0.0f, steps);
  std::memcpy(to + 2 * slot, &step, sizeof step);
  to += kStepsSize + value_offset(slot);
  for (size_t d = 0; d < head_size; ++d) to[d / 16 * 16 * kPageTokens + d % 16 * 2] = steps[d];
}

size_t widest(const Description& d) {
  return size_t(std::max({d.hidden_size, d.intermediate_size, d.num_heads * d.head_size}));
}

}  // namespace

Workspace::Workspace(const Model& model)
    : model_(model),
      activations_(kPassRows, widest(model.description)),
      hidden_(size_t(model.description.hidden_size)),
      inner_(size_t(std::max(model.description.hidden_size,
                             model.description.num_heads * model.description.head_size))),
      projected_(size_t((model.description.num_heads + 2 * model.description.num_kv_heads) *
                        model.description.head_size)),
      expanded_(size_t(model.description.intermediate_size)),
      queries_(size_t(model.description.num_heads * model.description.head_size + 1) / 2),
      query_steps_(size_t(model.description.num_heads)) {
  tokens_.reserve(kPassRows);
}

float* Workspace::run(const FedSpans& fed, size_t first, size_t count, const CacheShape& shape, const Rotary& rotary,
                      float* out, Pool& pool) {
  tokens_.clear();
  for (size_t i = first; i < first + count; ++i) tokens_.push_back(&fed.tokens[i]);
  plan_.make(tokens_, fed, model_.description, pool.num_threads());
  embed(pool);
  for (size_t index = 0; index < model_.layers.size(); ++index) {
    const Layer& layer = model_.layers[index];
    normalise(layer.attention_norm, pool);
    project_keys(layer, pool);
    place(layer, int64_t(index), fed, shape, rotary, pool);
    if (index + 1 == model_.layers.size()) {
      drop_unwanted();
      if (tokens_.empty()) return out;
      if (tokens_.size() < count) plan_.make(tokens_, fed, model_.description, pool.num_threads());
    }
    plan_.run(shape, int64_t(index), reinterpret_cast<const int16_t*>(queries_.at(0)), 2 * queries_.stride,
              query_steps_.at(0), query_steps_.stride, inner_.at(0), inner_.stride, pool);
    multiply_rows(inner_, layer.o.num_inputs(), {{&layer.o, or_none(layer.o_bias), hidden_.at(0), hidden_.stride}},
                  Epilogue::kAdd, pool);
    feed_forward(layer, pool);
  }
  normalise(model_.norm, pool);
  const size_t width = size_t(model_.description.vocabulary_size);
  multiply_rows(inner_, size_t(model_.description.hidden_size), {{&model_.output_head(), nullptr, out, width, width}},
                Epilogue::kStore, pool);
  return out + tokens_.size() * width;
}

void Workspace::embed(Pool& pool) {
  over_rows(tokens_.size(), 4, pool,
            [&](size_t row) { model_.embedding.row(size_t(tokens_[row]->token), hidden_.at(row)); });
}

void Workspace::normalise(const std::vector<float>& weight, Pool& pool) {
  const Kernels& table = kernels();
  over_rows(tokens_.size(), 16, pool, [&](size_t row) {
    table.rms_norm(hidden_.at(row), weight.data(), model_.description.epsilon, weight.size(), inner_.at(row));
  });
}

void Workspace::multiply_rows(const Rows& rows, size_t num_inputs, const std::vector<Product>& products,
                              Epilogue epilogue, Pool& pool) {
  bool quantised = false;
  for (const Product& product : products) quantised |= needs_quantised(product.matrix->view().layout);
  activations_.set(rows.at(0), rows.stride, tokens_.size(), num_inputs, quantised, pool);
  multiply(products, activations_, epilogue, pool);
}

// Queries, keys and values, side by side in a row of `projected_`.
void Workspace::project_keys(const Layer& layer, Pool& pool) {
  const size_t stride = projected_.stride;
  float* q = projected_.at(0);
  float* k = q + layer.q.num_outputs();
  float* v = k + layer.k.num_outputs();
  multiply_rows(inner_, layer.q.num_inputs(),
                {{&layer.q, or_none(layer.q_bias), q, stride},
                 {&layer.k, or_none(layer.k_bias), k, stride},
                 {&layer.v, or_none(layer.v_bias), v, stride}},
                Epilogue::kStore, pool);
}

// Turns queries and keys to their positions; puts keys and values into their pages.
void Workspace::place(const Layer& layer, int64_t index, const FedSpans& fed, const CacheShape& shape,
                      const Rotary& rotary, Pool& pool) {
  over_rows(tokens_.size(), 3, pool, [&](size_t row) {
    const Kernels& table = kernels();
    const Description& d = model_.description;
    const FedToken& token = *tokens_[row];
    const size_t head_size = size_t(d.head_size), slot = size_t(token.slot) % kPageTokens;
    const int64_t position = int64_t(token.sees.num_positions) - 1;
    float* x = projected_.at(row);
    const auto turn = [&](const std::vector<float>& norm) {
      if (!norm.empty()) table.rms_norm(x, norm.data(), d.epsilon, head_size, x);
      table.rotate(x, rotary.cos(position), rotary.sin(position), head_size / 2);
    };
    int16_t* query = reinterpret_cast<int16_t*>(queries_.at(row));
    for (int64_t head = 0; head < d.num_heads; ++head, x += head_size, query += head_size) {
      turn(layer.q_norm);
      query_steps_.at(row)[head] = table.to_steps(x, head_size, kLongest, query);
    }
    int16_t* page = fed.sequences[token.span]->pages[size_t(token.slot) / kPageTokens]->data;
    for (int64_t head = 0; head < d.num_kv_heads; ++head, x += head_size) {
      turn(layer.k_norm);
      put_keys(x, head_size, slot, page + shape.keys(index, head));
    }
    for (int64_t head = 0; head < d.num_kv_heads; ++head, x += head_size)
      put_values(x, head_size, slot, page + shape.values(index, head));
  });
}

void Workspace::feed_forward(const Layer& layer, Pool& pool) {
  normalise(layer.ffn_norm, pool);
  multiply_rows(inner_, layer.gate.num_inputs(),
                {{&layer.gate, or_none(layer.gate_bias), expanded_.at(0), expanded_.stride},
                 {&layer.up, or_none(layer.up_bias), expanded_.at(0), expanded_.stride}},
                Epilogue::kSiluMultiply, pool);
  multiply_rows(expanded_, layer.down.num_inputs(),
                {{&layer.down, or_none(layer.down_bias), hidden_.at(0), hidden_.stride}}, Epilogue::kAdd, pool);
}

// In the last layer, once keys and values are cached, only rows whose logits are wanted go on.
void Workspace::drop_unwanted() {
  size_t kept = 0;
  for (size_t row = 0; row < tokens_.size(); ++row) {
    if (!tokens_[row]->is_wanted) continue;
    if (kept != row) {
      std::memcpy(hidden_.at(kept), hidden_.at(row), hidden_.stride * sizeof(float));
      std::memcpy(queries_.at(kept), queries_.at(row), queries_.stride * sizeof(float));
      std::memcpy(query_steps_.at(kept), query_steps_.at(row), query_steps_.stride * sizeof(float));
      tokens_[kept] = tokens_[row];
    }
    ++kept;
  }
  tokens_.resize(kept);
}

}  // namespace forerun
