// Memory for weights and caches: aligned to cache lines, on huge pages where the system gives them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace forerun {

// Zeroed when made. Throws std::bad_alloc. Large blocks are mapped by themselves, so that freeing gives them back.
class Block {
 public:
  Block() = default;
  explicit Block(size_t num_bytes);
  ~Block();
  Block(Block&& other) noexcept { swap(other); }
  Block& operator=(Block&& other) noexcept {
    swap(other);
    return *this;
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return num_bytes_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Block& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
  }
  uint8_t* data_ = nullptr;
  size_t num_bytes_ = 0;
  void* base_ = nullptr;
  size_t mapped_ = 0;  // bytes of the mapping; 0 where the block came from the allocator
};

}  // namespace forerun
