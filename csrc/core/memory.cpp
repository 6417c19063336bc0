#include "core/memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace forerun {

namespace {
constexpr size_t kLine = 64;
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kMappedFrom = size_t(1) << 20;

size_t round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }
}  // namespace

Block::Block(size_t num_bytes) : num_bytes_(num_bytes) {
  if (num_bytes == 0) return;
  if (num_bytes > SIZE_MAX / 2) throw std::bad_alloc();
#if defined(__unix__) || defined(__APPLE__)
  if (num_bytes >= kMappedFrom) {
    // A large block begins on a huge page's boundary; the pages around it that are not used are never touched.
    const size_t edge = num_bytes >= kHugePage ? kHugePage : size_t(4096);
    mapped_ = round_up(num_bytes, 4096) + edge;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
      base_ = nullptr;
      throw std::bad_alloc();
    }
    data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(base_), edge));
#if defined(__linux__)
    if (num_bytes >= kHugePage) madvise(data_, round_up(num_bytes, 4096), MADV_HUGEPAGE);
#endif
    return;
  }
#endif
  base_ = std::malloc(num_bytes + kLine);
  if (base_ == nullptr) throw std::bad_alloc();
  data_ = reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<size_t>(base_), kLine));
  std::memset(data_, 0, num_bytes);
}

Block::~Block() {
#if defined(__unix__) || defined(__APPLE__)
  if (mapped_ != 0) {
    munmap(base_, mapped_);
    return;
  }
#endif
  std::free(base_);
}

}  // namespace forerun
