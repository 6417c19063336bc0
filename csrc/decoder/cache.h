// Keys and values of every sequence, in pages of 64 tokens that sequences may share.
//
// A page is written to only by the one sequence that holds it; whoever wants to write to a shared page copies it first.
// What lies beyond a sequence's length is garbage that nobody reads.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "decoder/attention.h"

namespace forerun {

struct Slab;
struct Page {
  int16_t* data = nullptr;
  int64_t references = 0;
  Slab* slab = nullptr;
};

// Pages come from slabs of a few megabytes, which lie on huge pages. A slab that is empty is given back, save one.
class PageStore {
 public:
  explicit PageStore(size_t page_bytes);
  ~PageStore();

  Page* take();  // with one reference; std::bad_alloc
  void release(Page* page);
  size_t page_bytes() const { return page_bytes_; }
  int64_t num_used() const { return num_used_; }

 private:
  size_t page_bytes_, slab_pages_;
  int64_t num_used_ = 0;
  std::vector<std::unique_ptr<Slab>> slabs_;
};

struct Sequence {
  std::vector<Page*> pages;
  std::vector<const int16_t*> data;  // the pages' beginnings, as attention wants them
  int64_t length = 0;
  // The last span, as long as `keep` may choose a path in it: where it began (-1: there is none), its parents (empty:
  // a chain), and how many of its tokens follow one another from its first token on.
  int64_t span_start = -1;
  int64_t span_trunk = 0;
  std::vector<int32_t> parents;
};

// What a cached page holds, and where.
struct CacheShape {
  int64_t num_layers, num_kv_heads, head_size;
  size_t keys(int64_t layer, int64_t head) const {  // in int16 from a page's beginning
    return size_t(layer * num_kv_heads + head) * (keys_size(size_t(head_size)) + values_size(size_t(head_size)));
  }
  size_t values(int64_t layer, int64_t head) const { return keys(layer, head) + keys_size(size_t(head_size)); }
  size_t page_bytes() const { return keys(num_layers, 0) * sizeof(int16_t); }
};

class Cache {
 public:
  explicit Cache(const CacheShape& shape) : shape_(shape), store_(shape.page_bytes()) {}

  void begin(int64_t id);
  void free(int64_t id);  // unknown ids are ignored
  Sequence& at(int64_t id);
  void keep(int64_t id, int64_t length, const std::vector<int64_t>& path);
  void fork(int64_t source, int64_t target, int64_t length);

  // Makes slots [start, end) of each sequence writable: pages that are missing are taken, shared ones copied. If memory
  // runs out, all sequences stay as they were.
  struct Need {
    Sequence* sequence;
    int64_t start, end;
  };
  void reserve(const std::vector<Need>& needs);
  void trim(Sequence& sequence);  // gives back pages beyond the length

  const CacheShape& shape() const { return shape_; }
  int64_t num_bytes() const { return store_.num_used() * int64_t(store_.page_bytes()); }

 private:
  void check_path(const Sequence& sequence, int64_t id, int64_t length, const std::vector<int64_t>& path) const;
  void move_token(Sequence& sequence, int64_t from, int64_t to);

  CacheShape shape_;
  PageStore store_;
  std::unordered_map<int64_t, Sequence> sequences_;
};

}  // namespace forerun
