// The decoder as Python sees it: arrays in, logits out, the GIL released around all work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>

#include "decoder/decoder.h"
#include "python/bind.h"
#include "weights/codes.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

namespace {

template <class T, size_t Dimensions>
using Array = nb::ndarray<T, nb::ndim<Dimensions>, nb::c_contig, nb::device::cpu>;

// Reads a description's fields one by one, so that a missing or misspelt one is named.
class Fields {
 public:
  explicit Fields(nb::dict fields) : fields_(std::move(fields)) {}

  template <class T>
  void read(const char* name, T& to) {
    ++num_read_;
    if (!fields_.contains(name)) throw std::invalid_argument("the description lacks " + std::string(name));
    known_ += std::string(known_.empty() ? "" : ", ") + name;
    try {
      to = nb::cast<T>(fields_[name]);
    } catch (const nb::cast_error&) {
      throw std::invalid_argument("the description's " + std::string(name) + " has the wrong type");
    }
  }

  void done() const {
    if (nb::len(fields_) != num_read_)
      throw std::invalid_argument("the description has fields that are unknown; known are " + known_);
  }

 private:
  nb::dict fields_;
  size_t num_read_ = 0;
  std::string known_;
};

Activation activation_named(const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  throw std::invalid_argument("activation is '" + name + "': it must be silu or gelu_tanh");
}

Description description_of(nb::dict dict) {
  Description d;
  Fields fields(std::move(dict));
  fields.read("num_layers", d.num_layers);
  fields.read("hidden_size", d.hidden_size);
  fields.read("intermediate_size", d.intermediate_size);
  fields.read("num_heads", d.num_heads);
  fields.read("num_kv_heads", d.num_kv_heads);
  fields.read("head_size", d.head_size);
  fields.read("num_embeddings", d.num_embeddings);
  fields.read("vocabulary_size", d.vocabulary_size);
  fields.read("context_length", d.context_length);
  fields.read("epsilon", d.epsilon);
  fields.read("attention_scale", d.attention_scale);
  fields.read("attention_softcap", d.attention_softcap);
  fields.read("embedding_scale", d.embedding_scale);
  fields.read("residual_scale", d.residual_scale);
  fields.read("logit_scale", d.logit_scale);
  fields.read("logit_softcap", d.logit_softcap);
  std::string activation;
  fields.read("activation", activation);
  d.activation = activation_named(activation);
  std::vector<std::pair<Array<const double, 1>, float>> rotaries;
  fields.read("rotaries", rotaries);
  for (const auto& [frequencies, scale] : rotaries)
    d.rotaries.push_back({{frequencies.data(), frequencies.data() + frequencies.size()}, scale});
  fields.read("layer_rotaries", d.layer_rotaries);
  fields.read("layer_windows", d.layer_windows);
  fields.done();
  return d;
}

void set_matrix(Decoder& decoder, const std::string& name, const std::string& stored, Array<const uint8_t, 2> data,
                int64_t num_inputs, std::optional<Array<const uint32_t, 1>> order, const std::string& rounding) {
  const Rounding how = rounding_named(rounding);
  const Stored format = stored_named(stored);
  if (num_inputs < 1) throw std::invalid_argument("matrix " + name + " has " + std::to_string(num_inputs) + " inputs");
  const size_t row_bytes = stored_row_bytes(format, size_t(num_inputs));
  if (data.shape(1) != row_bytes)
    throw std::invalid_argument("matrix " + name + " has rows of " + std::to_string(data.shape(1)) + " bytes where " +
                                std::to_string(num_inputs) + " inputs of " + stored + " take " +
                                std::to_string(row_bytes));
  const size_t num_outputs = order ? order->size() : data.shape(0);
  if (num_outputs == 0) throw std::invalid_argument("matrix " + name + " has no outputs");
  for (size_t i = 0; order && i < num_outputs; ++i)
    if (order->data()[i] >= data.shape(0))
      throw std::invalid_argument("matrix " + name + " has no row " + std::to_string(order->data()[i]));
  const uint32_t* rows = order ? order->data() : nullptr;
  nb::gil_scoped_release release;
  decoder.set_matrix(name,
                     Matrix::round(how, format, data.data(), num_outputs, size_t(num_inputs), rows, Pool::shared()));
}

// (name, layout, outputs, inputs, packed bytes [n]) of every matrix; the bytes are the decoder's own.
nb::list packed(const Decoder& decoder) {
  nb::list all;
  for (const auto& [name, matrix] : decoder.matrices()) {
    auto* kept = new Matrix(matrix);
    nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<Matrix*>(p); });
    nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>> bytes(kept->view().data, {kept->num_bytes()}, owner);
    all.append(nb::make_tuple(name, name_of(kept->view().layout), kept->num_outputs(), kept->num_inputs(), bytes));
  }
  return all;
}

void map_matrix(Decoder& decoder, const std::string& name, std::shared_ptr<Mapping> file, size_t offset,
                size_t num_bytes, const std::string& layout, size_t num_outputs, size_t num_inputs) {
  decoder.map_matrix(name, std::move(file), offset, num_bytes, layout_of(stored_named(layout)), num_outputs,
                     num_inputs);
}

void forward(Decoder& decoder, Array<const int64_t, 1> ids, Array<const int64_t, 1> starts,
             Array<const int32_t, 1> tokens, Array<const int64_t, 1> counts, Array<const int64_t, 1> num_rows,
             std::optional<Array<const int32_t, 1>> parents, Array<float, 2> out) {
  const size_t num_spans = ids.size();
  if (starts.size() != num_spans || counts.size() != num_spans || num_rows.size() != num_spans)
    throw std::invalid_argument("ids, starts, counts and num_rows need one entry for each span");
  if (parents && parents->size() != tokens.size())
    throw std::invalid_argument("parents need one entry for each token");
  std::vector<SpanOf> spans(num_spans);
  size_t num_tokens = 0, total_rows = 0;
  for (size_t i = 0; i < num_spans; ++i) {
    const int64_t count = counts.data()[i], rows = num_rows.data()[i];
    if (count < 0 || size_t(count) > tokens.size() - num_tokens)
      throw std::invalid_argument("counts name more tokens than were given, or less than none");
    if (rows < 0 || rows > count)
      throw std::invalid_argument(std::to_string(rows) + " rows were asked for of " + std::to_string(count) +
                                  " tokens");
    spans[i] = {ids.data()[i], starts.data()[i], tokens.data() + num_tokens, count, rows,
                parents ? parents->data() + num_tokens : nullptr};
    num_tokens += size_t(count);
    total_rows += size_t(rows);
  }
  if (num_tokens != tokens.size()) throw std::invalid_argument("counts name fewer tokens than were given");
  if (out.shape(0) != total_rows || int64_t(out.shape(1)) != decoder.vocabulary_size())
    throw std::invalid_argument("out is [" + std::to_string(out.shape(0)) + ", " + std::to_string(out.shape(1)) +
                                "] where [" + std::to_string(total_rows) + ", " +
                                std::to_string(decoder.vocabulary_size()) + "] is needed");
  nb::gil_scoped_release release;
  decoder.forward(spans, out.data(), Pool::shared());
}

// Counts each piece of a loop, and throws in one of them: for tests of the pool. `num_threads` 0 is the shared pool.
void run_pieces(Array<int32_t, 1> counts, int64_t failing, int num_threads) {
  nb::gil_scoped_release release;
  const auto loop = [&](Pool& pool) {
    pool.run(int64_t(counts.size()), [&](int64_t piece) {
      ++counts.data()[piece];
      if (piece == failing) throw std::runtime_error("piece " + std::to_string(piece) + " failed");
    });
  };
  if (num_threads == 0) return loop(Pool::shared());
  Pool pool(num_threads);
  loop(pool);
}

}  // namespace

void bind_decoder(nb::module_& module) {
  nb::class_<Mapping>(module, "Mapping", "A file's bytes as memory. If the file is cut, what is gone reads as zeros.")
      .def(nb::init<const std::string&>(), "path"_a)
      .def_prop_ro("num_bytes", &Mapping::size)
      .def_prop_ro("is_damaged", &Mapping::is_damaged, "Whether the file was cut and that was met.")
      .def(
          "read",
          [](const Mapping& file, size_t offset, size_t num_bytes) {
            if (offset > file.size() || num_bytes > file.size() - offset)
              throw std::invalid_argument("there is no such place in " + file.path());
            return nb::bytes(reinterpret_cast<const char*>(file.data() + offset), num_bytes);
          },
          "offset"_a, "num_bytes"_a, "Some of its bytes.");
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Decoder>(module, "Decoder", "A decoder-only transformer of the llama kind: weights, caches and passes.")
      .def("__init__",
           [](Decoder* self, nb::dict description) { new (self) Decoder(description_of(std::move(description))); },
           "description"_a)
      .def("set_matrix", set_matrix, "name"_a, "stored"_a, nb::arg("data").noconvert(), "num_inputs"_a,
           nb::arg("order").noconvert() = nb::none(), "rounding"_a = "none",
           "Repacks stored rows [num_outputs, bytes], rounded to none, q4, q8_0 or bf16; output i is row order[i].")
      .def("set_matrix", &Decoder::set_matrix, "name"_a, "matrix"_a, Unlocked(), "A matrix that is packed already.")
      .def("map_matrix", map_matrix, "name"_a, "file"_a, "offset"_a, "num_bytes"_a, "layout"_a, "num_outputs"_a,
           "num_inputs"_a, "Takes packed weights from a mapped file: what `packed` gave.")
      .def("packed", packed, "Every matrix: name, layout, outputs, inputs, bytes.")
      .def("set_vector",
           [](Decoder& self, const std::string& name, Array<const float, 1> values) {
             self.set_vector(name, std::vector<float>(values.data(), values.data() + values.size()));
           },
           "name"_a, nb::arg("values").noconvert())
      .def("finish", &Decoder::finish, Unlocked(), "Checks that all weights are there; nothing can be fed before.")
      .def("begin", &Decoder::begin, "sequence_id"_a, Unlocked())
      .def("free", &Decoder::free, "sequence_id"_a, Unlocked(), "Unknown ids are ignored.")
      .def("length", &Decoder::length, "sequence_id"_a, Unlocked())
      .def("keep", &Decoder::keep, "sequence_id"_a, "length"_a, "path"_a = std::vector<int64_t>(), Unlocked(),
           "The first `length` tokens, then those at `path` in the last span.")
      .def("fork", &Decoder::fork, "source"_a, "target"_a, "length"_a, Unlocked())
      .def("forward", forward, nb::arg("ids").noconvert(), nb::arg("starts").noconvert(), nb::arg("tokens").noconvert(),
           nb::arg("counts").noconvert(), nb::arg("num_rows").noconvert(), nb::arg("parents").noconvert().none(),
           nb::arg("out").noconvert(), "Feeds spans; logits of each one's last rows go to out [rows, vocabulary_size].")
      .def_prop_ro("weight_bytes", &Decoder::weight_bytes, Unlocked(), "Bytes of weights that one pass reads.")
      .def_prop_ro("cache_bytes", &Decoder::cache_bytes, Unlocked(), "Bytes of the pages in use.");
  module.def("run_pieces", run_pieces, nb::arg("counts").noconvert(), "failing"_a = -1, "num_threads"_a = 0,
             "Adds 1 to counts[i] in piece i of a loop; piece `failing` throws. For tests of the thread pool.");
}

}  // namespace forerun
