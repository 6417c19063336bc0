// A file's bytes as memory, read-only, shared with every process that maps it.
//
// If the file is cut while it is mapped, reading what is gone would end the process (SIGBUS). Here it reads zeros
// instead, and the mapping is marked: whoever computed with it must ask `is_damaged` before the results are used.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace forerun {

class Mapping {
 public:
  explicit Mapping(const std::string& path);  // std::runtime_error says what the system said
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  const uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& path() const { return path_; }
  bool is_damaged() const { return is_damaged_.load(std::memory_order_relaxed); }

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t guard_ = 0;  // which guarded range it is
  std::atomic<bool> is_damaged_{false};
};

}  // namespace forerun
