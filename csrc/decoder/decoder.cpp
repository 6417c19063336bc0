#include "decoder/decoder.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "decoder/forward.h"

namespace forerun {

struct Decoder::Impl {
  explicit Impl(const Description& description)
      : model(description),
        cache({description.num_layers, description.num_kv_heads, description.head_size}) {
    for (const RotaryTable& table : description.rotaries) rotaries.emplace_back(table.frequencies, table.scale);
  }

  void need_finished() const {
    if (!workspace) throw std::invalid_argument("the decoder's weights are not complete: call finish() first");
  }
  // What was computed from weights that are gone must not be used.
  void need_whole_files() const {
    for (const auto& file : files)
      if (file->is_damaged()) throw std::runtime_error(file->path() + " was cut while its weights were in use");
  }
  void need_open() const {
    if (workspace) throw std::invalid_argument("the decoder's weights are complete and cannot be changed");
  }

  mutable std::mutex lock;  // Python's threads may call anything at any time
  Model model;
  Cache cache;
  std::vector<Rotary> rotaries;  // as the description has them
  std::vector<std::shared_ptr<const Mapping>> files;  // that weights lie in
  std::optional<Workspace> workspace;  // there from `finish` on
};

Decoder::Decoder(const Description& description) : impl_(new Impl(description)) {}
Decoder::~Decoder() = default;

void Decoder::set_matrix(const std::string& name, Matrix matrix) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->need_open();
  impl_->model.matrix(name) = std::move(matrix);
}

void Decoder::set_vector(const std::string& name, std::vector<float> values) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->need_open();
  impl_->model.vector(name) = std::move(values);
}

void Decoder::map_matrix(const std::string& name, std::shared_ptr<const Mapping> file, size_t offset, size_t num_bytes,
                         Layout layout, size_t num_outputs, size_t num_inputs) {
  if (offset % 64 != 0 || offset > file->size() || num_bytes > file->size() - offset)
    throw std::invalid_argument("matrix " + name + " does not lie in " + file->path());
  Matrix matrix = Matrix::adopt(file, file->data() + offset, num_bytes, layout, num_outputs, num_inputs);
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->need_open();
  impl_->model.matrix(name) = std::move(matrix);
  if (std::find(impl_->files.begin(), impl_->files.end(), file) == impl_->files.end())
    impl_->files.push_back(std::move(file));
}

std::vector<std::pair<std::string, Matrix>> Decoder::matrices() const {
  std::lock_guard<std::mutex> guard(impl_->lock);
  return impl_->model.all_matrices();
}

void Decoder::finish() {
  std::lock_guard<std::mutex> guard(impl_->lock);
  if (impl_->workspace) return;
  impl_->model.check();
  impl_->workspace.emplace(impl_->model);
}

void Decoder::begin(int64_t sequence_id) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->cache.begin(sequence_id);
}

void Decoder::free(int64_t sequence_id) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->cache.free(sequence_id);
}

int64_t Decoder::length(int64_t sequence_id) const {
  std::lock_guard<std::mutex> guard(impl_->lock);
  return impl_->cache.at(sequence_id).length;
}

void Decoder::keep(int64_t sequence_id, int64_t length, const std::vector<int64_t>& path) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->cache.keep(sequence_id, length, path);
}

void Decoder::fork(int64_t source, int64_t target, int64_t length) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->cache.fork(source, target, length);
}

void Decoder::forward(const std::vector<SpanOf>& spans, float* out, Pool& pool) {
  std::lock_guard<std::mutex> guard(impl_->lock);
  impl_->need_finished();
  Cache& cache = impl_->cache;
  FedSpans fed = lay_out(spans, cache, impl_->model.description);
  std::vector<Cache::Need> needs;
  std::vector<LastSpan> lasts;
  for (size_t i = 0; i < spans.size(); ++i) {
    needs.push_back({fed.sequences[i], spans[i].start, spans[i].start + spans[i].num_tokens});
    lasts.push_back(last_span(spans[i]));
  }
  for (Rotary& rotary : impl_->rotaries) rotary.reach(fed.num_positions);
  cache.reserve(needs);
  try {
    for (size_t first = 0; first < fed.tokens.size(); first += kPassRows)
      out = impl_->workspace->run(fed, first, std::min(kPassRows, fed.tokens.size() - first), cache.shape(),
                                  impl_->rotaries, out, pool);
    impl_->need_whole_files();
  } catch (...) {
    for (Sequence* sequence : fed.sequences) cache.trim(*sequence);
    throw;
  }
  for (size_t i = 0; i < spans.size(); ++i) {
    Sequence& sequence = *fed.sequences[i];
    sequence.length = spans[i].start + spans[i].num_tokens;
    sequence.span_start = spans[i].start;
    sequence.span_trunk = lasts[i].trunk;
    sequence.parents = std::move(lasts[i].parents);
  }
}

int64_t Decoder::vocabulary_size() const { return impl_->model.description.vocabulary_size; }

int64_t Decoder::weight_bytes() const {
  std::lock_guard<std::mutex> guard(impl_->lock);
  return impl_->model.num_bytes();
}

int64_t Decoder::cache_bytes() const {
  std::lock_guard<std::mutex> guard(impl_->lock);
  return impl_->cache.num_bytes();
}

}  // namespace forerun
