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

size_t width_given(const Model& model) {
  const Layer& layer = model.layers[0];  // as all the others
  const bool is_added_as_is = layer.attention_post_norm.empty() && layer.ffn_post_norm.empty();
  return is_added_as_is && model.description.residual_scale == 1.0f ? 0 : size_t(model.description.hidden_size);
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
      given_(width_given(model)),
      queries_(size_t(model.description.num_heads * model.description.head_size + 1) / 2),
      query_steps_(size_t(model.description.num_heads)) {
  tokens_.reserve(kPassRows);
  for (const int64_t window : model.description.layer_windows) {
    const auto found = std::find(windows_.begin(), windows_.end(), window);
    window_of_.push_back(size_t(found - windows_.begin()));
    if (found == windows_.end()) windows_.push_back(window);
  }
  plans_.resize(windows_.size());
}

float* Workspace::run(const FedSpans& fed, size_t first, size_t count, const CacheShape& shape,
                      const std::vector<Rotary>& rotaries, float* out, Pool& pool) {
  tokens_.clear();
  for (size_t i = first; i < first + count; ++i) tokens_.push_back(&fed.tokens[i]);
  for (size_t i = 0; i < plans_.size(); ++i) plan(i, fed, pool);
  embed(pool);
  for (size_t index = 0; index < model_.layers.size(); ++index) {
    const Layer& layer = model_.layers[index];
    const int64_t rotary = model_.description.layer_rotaries[index];
    project_keys(layer, pool);
    place(layer, int64_t(index), fed, shape, rotary < 0 ? nullptr : &rotaries[size_t(rotary)], pool);
    if (index + 1 == model_.layers.size()) {
      drop_unwanted();
      if (tokens_.empty()) return out;
      if (tokens_.size() < count) plan(window_of_[index], fed, pool);
    }
    plans_[window_of_[index]].run(shape, int64_t(index), reinterpret_cast<const int16_t*>(queries_.at(0)),
                                  2 * queries_.stride, query_steps_.at(0), query_steps_.stride, inner_.at(0),
                                  inner_.stride, partials_, pool);
    add_product(inner_, layer.o, layer.o_bias, layer.attention_post_norm, pool);
    feed_forward(layer, pool);
  }
  const size_t width = size_t(model_.description.vocabulary_size);
  multiply_rows(normalise(model_.norm, pool), size_t(model_.description.hidden_size),
                {{&model_.output_head(), nullptr, out, width, width}}, Epilogue::kStore, pool);
  scale_logits(out, pool);
  return out + tokens_.size() * width;
}

void Workspace::plan(size_t index, const FedSpans& fed, Pool& pool) {
  plans_[index].make(tokens_, fed, model_.description, windows_[index], pool.num_threads());
}

void Workspace::embed(Pool& pool) {
  const size_t width = size_t(model_.description.hidden_size);
  const float scale = model_.description.embedding_scale;
  over_rows(tokens_.size(), 4, pool, [&](size_t row) {
    model_.embedding.row(size_t(tokens_[row]->token), hidden_.at(row));
    if (scale != 1.0f) kernels().scale_and_cap(hidden_.at(row), width, scale, 0.0f);
  });
}

// The stream, normalised, in `inner_`; without a norm, the stream itself.
const Workspace::Rows& Workspace::normalise(const std::vector<float>& weight, Pool& pool) {
  if (weight.empty()) return hidden_;
  const Kernels& table = kernels();
  over_rows(tokens_.size(), 16, pool, [&](size_t row) {
    table.rms_norm(hidden_.at(row), weight.data(), model_.description.epsilon, weight.size(), inner_.at(row));
  });
  return inner_;
}

// Adds what `matrix` makes of `rows` to the stream, after a norm where there is one.
void Workspace::add_product(const Rows& rows, const Matrix& matrix, const std::vector<float>& bias,
                            const std::vector<float>& post_norm, Pool& pool) {
  const Description& d = model_.description;
  const bool is_added_as_is = post_norm.empty() && d.residual_scale == 1.0f;
  const Rows& to = is_added_as_is ? hidden_ : given_;
  multiply_rows(rows, matrix.num_inputs(), {{&matrix, or_none(bias), to.at(0), to.stride}},
                is_added_as_is ? Epilogue::kAdd : Epilogue::kStore, pool);
  if (is_added_as_is) return;
  const Kernels& table = kernels();
  const size_t width = size_t(d.hidden_size);
  over_rows(tokens_.size(), 16, pool, [&](size_t row) {
    float* x = given_.at(row);
    if (!post_norm.empty()) table.rms_norm(x, post_norm.data(), d.epsilon, width, x);
    table.add_scaled(x, d.residual_scale, width, hidden_.at(row));
  });
}

void Workspace::scale_logits(float* logits, Pool& pool) {
  constexpr size_t kPiece = 8192;
  const Description& d = model_.description;
  if (d.logit_scale == 1.0f && d.logit_softcap == 0.0f) return;
  const size_t size = tokens_.size() * size_t(d.vocabulary_size);
  over_rows((size + kPiece - 1) / kPiece, 1, pool, [&](size_t piece) {
    const size_t first = piece * kPiece;
    kernels().scale_and_cap(logits + first, std::min(kPiece, size - first), d.logit_scale, d.logit_softcap);
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
  const Rows& rows = normalise(layer.attention_norm, pool);
  const size_t stride = projected_.stride;
  float* q = projected_.at(0);
  float* k = q + layer.q.num_outputs();
  float* v = k + layer.k.num_outputs();
  multiply_rows(rows, layer.q.num_inputs(),
                {{&layer.q, or_none(layer.q_bias), q, stride},
                 {&layer.k, or_none(layer.k_bias), k, stride},
                 {&layer.v, or_none(layer.v_bias), v, stride}},
                Epilogue::kStore, pool);
}

// Turns queries and keys to their positions (`rotary` nullptr: they know none); puts keys and values into their pages.
void Workspace::place(const Layer& layer, int64_t index, const FedSpans& fed, const CacheShape& shape,
                      const Rotary* rotary, Pool& pool) {
  over_rows(tokens_.size(), 3, pool, [&](size_t row) {
    const Kernels& table = kernels();
    const Description& d = model_.description;
    const FedToken& token = *tokens_[row];
    const size_t head_size = size_t(d.head_size), slot = size_t(token.slot) % kPageTokens;
    const int64_t position = int64_t(token.sees.num_positions) - 1;
    float* x = projected_.at(row);
    const auto normalise_all = [&](const std::vector<float>& norm) {
      if (norm.size() > head_size) table.rms_norm(x, norm.data(), d.epsilon, norm.size(), x);
    };
    const auto turn = [&](const std::vector<float>& norm) {
      if (norm.size() == head_size) table.rms_norm(x, norm.data(), d.epsilon, head_size, x);
      if (rotary) table.rotate(x, rotary->cos(position), rotary->sin(position), rotary->num_pairs());
    };
    int16_t* query = reinterpret_cast<int16_t*>(queries_.at(row));
    normalise_all(layer.q_norm);
    for (int64_t head = 0; head < d.num_heads; ++head, x += head_size, query += head_size) {
      turn(layer.q_norm);
      query_steps_.at(row)[head] = table.to_steps(x, head_size, kLongest, query);
    }
    normalise_all(layer.k_norm);
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
  const Epilogue epilogue =
      model_.description.activation == Activation::kSilu ? Epilogue::kSiluMultiply : Epilogue::kGeluTanhMultiply;
  multiply_rows(normalise(layer.ffn_norm, pool), layer.gate.num_inputs(),
                {{&layer.gate, or_none(layer.gate_bias), expanded_.at(0), expanded_.stride},
                 {&layer.up, or_none(layer.up_bias), expanded_.at(0), expanded_.stride}},
                epilogue, pool);
  add_product(expanded_, layer.down, layer.down_bias, layer.ffn_post_norm, pool);
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
