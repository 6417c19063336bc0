#include "decoder/cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace forerun {

// -- pages ------------------------------------------------------------------------------------------------------------

struct Slab {
  Slab(size_t page_bytes, size_t num_pages) : memory(page_bytes * num_pages), pages(num_pages) {
    free.reserve(num_pages);
    for (size_t i = num_pages; i-- > 0;) {
      pages[i].data = reinterpret_cast<int16_t*>(memory.data() + i * page_bytes);
      pages[i].slab = this;
      free.push_back(&pages[i]);
    }
  }
  bool is_empty() const { return free.size() == pages.size(); }

  Block memory;
  std::vector<Page> pages;
  std::vector<Page*> free;
};

namespace {

constexpr size_t kSlabBytes = size_t(8) << 20;
constexpr size_t kMostPages = 256;  // of a slab: small models should not hold megabytes for one token

std::string text(int64_t value) { return std::to_string(value); }

}  // namespace

PageStore::PageStore(size_t page_bytes)
    : page_bytes_(page_bytes),
      slab_pages_(std::min(kMostPages, std::max<size_t>(1, kSlabBytes / std::max<size_t>(1, page_bytes)))) {}

PageStore::~PageStore() = default;

Page* PageStore::take() {
  auto with_room = std::find_if(slabs_.begin(), slabs_.end(), [](const auto& slab) { return !slab->free.empty(); });
  if (with_room == slabs_.end()) {
    slabs_.push_back(std::make_unique<Slab>(page_bytes_, slab_pages_));
    with_room = slabs_.end() - 1;
  }
  Page* page = (*with_room)->free.back();
  (*with_room)->free.pop_back();
  page->references = 1;
  ++num_used_;
  return page;
}

void PageStore::release(Page* page) {
  if (--page->references > 0) return;
  --num_used_;
  Slab* slab = page->slab;
  slab->free.push_back(page);  // never grows: `free` has room for all its pages
  if (!slab->is_empty()) return;
  const auto other = std::find_if(slabs_.begin(), slabs_.end(),
                                  [slab](const auto& one) { return one.get() != slab && one->is_empty(); });
  if (other != slabs_.end()) slabs_.erase(other);
}

// -- sequences --------------------------------------------------------------------------------------------------------

void Cache::begin(int64_t id) {
  if (!sequences_.emplace(id, Sequence{}).second)
    throw std::invalid_argument("sequence " + text(id) + " was begun twice");
}

void Cache::free(int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) return;
  for (Page* page : found->second.pages) store_.release(page);
  sequences_.erase(found);
}

Sequence& Cache::at(int64_t id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end()) throw std::invalid_argument("sequence " + text(id) + " was not begun");
  return found->second;
}

void Cache::fork(int64_t source, int64_t target, int64_t length) {
  Sequence& from = at(source);
  if (sequences_.count(target)) throw std::invalid_argument("sequence " + text(target) + " was begun already");
  check_path(from, source, length, {});
  Sequence to;
  const size_t num_pages = (size_t(length) + kPageTokens - 1) / kPageTokens;
  to.pages.assign(from.pages.begin(), from.pages.begin() + int64_t(num_pages));
  to.data.assign(from.data.begin(), from.data.begin() + int64_t(num_pages));
  to.length = length;
  Sequence& placed = sequences_.emplace(target, std::move(to)).first->second;
  for (Page* page : placed.pages) ++page->references;
}

// A path's first token follows the last token that is kept, each of the others the one before it.
void Cache::check_path(const Sequence& sequence, int64_t id, int64_t length, const std::vector<int64_t>& path) const {
  const std::string of = " of sequence " + text(id);
  if (length < 0 || length > sequence.length)
    throw std::invalid_argument("cannot keep " + text(length) + " of " + text(sequence.length) + " cached tokens" + of);
  const bool is_tree = !sequence.parents.empty();
  if (is_tree && length > sequence.span_start + sequence.span_trunk)
    throw std::invalid_argument("the first " + text(length) + " cached tokens" + of +
                                " are not one text: the last span was a tree; name the accepted path");
  if (path.empty()) return;
  if (sequence.span_start < 0)
    throw std::invalid_argument("a path" + of + " needs a span fed just before");
  int64_t before = length - 1 - sequence.span_start;  // in the span; -1: the committed text
  const int64_t num_tokens = sequence.length - sequence.span_start;
  for (int64_t node : path) {
    if (node < 0 || node >= num_tokens)
      throw std::invalid_argument("path entry " + text(node) + of + " is outside the last span's " + text(num_tokens) +
                                  " tokens");
    const int64_t parent = is_tree ? sequence.parents[size_t(node)] : node - 1;
    if (parent != before)
      throw std::invalid_argument("path entry " + text(node) + of + " does not follow the tokens kept before it");
    before = node;
  }
}

void Cache::keep(int64_t id, int64_t length, const std::vector<int64_t>& path) {
  Sequence& sequence = at(id);
  check_path(sequence, id, length, path);
  const int64_t kept = length + int64_t(path.size());
  bool moves = false;
  for (size_t i = 0; i < path.size(); ++i) moves |= sequence.span_start + path[i] != length + int64_t(i);
  if (moves) {
    reserve({{&sequence, length, kept}});
    // A node's slot is never before its place, so nothing is overwritten before it has moved.
    for (size_t i = 0; i < path.size(); ++i)
      move_token(sequence, sequence.span_start + path[i], length + int64_t(i));
  }
  sequence.length = kept;
  sequence.span_start = -1;
  sequence.parents.clear();
  trim(sequence);
}

void Cache::trim(Sequence& sequence) {
  const size_t num_pages = (size_t(sequence.length) + kPageTokens - 1) / kPageTokens;
  while (sequence.pages.size() > num_pages) {
    store_.release(sequence.pages.back());
    sequence.pages.pop_back();
    sequence.data.pop_back();
  }
}

void Cache::reserve(const std::vector<Need>& needs) {
  struct Place {
    Sequence* sequence;
    size_t index;
    Page* page;
  };
  std::vector<Place> places;
  for (const Need& need : needs) {
    const size_t first = size_t(need.start) / kPageTokens;
    const size_t end = (size_t(need.end) + kPageTokens - 1) / kPageTokens;
    for (size_t i = first; i < end; ++i)
      if (i >= need.sequence->pages.size() || need.sequence->pages[i]->references > 1)
        places.push_back({need.sequence, i, nullptr});
  }
  size_t taken = 0;
  try {
    for (const Need& need : needs) {
      const size_t end = (size_t(need.end) + kPageTokens - 1) / kPageTokens;
      need.sequence->pages.reserve(end);
      need.sequence->data.reserve(end);
    }
    for (; taken < places.size(); ++taken) places[taken].page = store_.take();
  } catch (...) {
    while (taken > 0) store_.release(places[--taken].page);
    throw;
  }
  for (const Place& place : places) {
    Sequence& sequence = *place.sequence;
    if (place.index < sequence.pages.size()) {
      Page*& old = sequence.pages[place.index];
      if (old->references == 1) {  // its other holder made its own copy in this very call
        store_.release(place.page);
        continue;
      }
      std::memcpy(place.page->data, old->data, store_.page_bytes());
      store_.release(old);
      old = place.page;
      sequence.data[place.index] = place.page->data;
    } else {
      sequence.pages.push_back(place.page);
      sequence.data.push_back(place.page->data);
    }
  }
}

void Cache::move_token(Sequence& sequence, int64_t from, int64_t to) {
  if (from == to) return;
  const size_t source = size_t(from) % kPageTokens, target = size_t(to) % kPageTokens;
  const size_t head_size = size_t(shape_.head_size);
  for (int64_t layer = 0; layer < shape_.num_layers; ++layer)
    for (int64_t head = 0; head < shape_.num_kv_heads; ++head)
      for (const bool is_value : {false, true}) {
        const size_t base = is_value ? shape_.values(layer, head) : shape_.keys(layer, head);
        const int16_t* old_part = sequence.data[size_t(from) / kPageTokens] + base;
        int16_t* new_part = sequence.pages[size_t(to) / kPageTokens]->data + base;
        std::memcpy(new_part + target * 2, old_part + source * 2, sizeof(float));  // the step
        old_part += kStepsSize;
        new_part += kStepsSize;
        if (is_value)
          for (size_t d = 0; d < head_size; ++d)
            new_part[value_offset(target) + d / 16 * 1024 + d % 16 * 2] =
                old_part[value_offset(source) + d / 16 * 1024 + d % 16 * 2];
        else
          for (size_t d = 0; d < head_size; d += 2)
            std::memcpy(new_part + key_offset(target, head_size) + d * 16,
                        old_part + key_offset(source, head_size) + d * 16, 2 * sizeof(int16_t));
      }
}

}  // namespace forerun
