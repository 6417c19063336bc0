#include "core/mapping.h"

#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>

#if defined(__unix__) || defined(__APPLE__)
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

namespace forerun {

#if defined(__unix__) || defined(__APPLE__)

namespace {

// What the signal handler looks at: no locks, nothing that allocates. A range is in use while `end` is not 0.
struct Guarded {
  std::atomic<uintptr_t> begin{0}, end{0};
  std::atomic<std::atomic<bool>*> is_damaged{nullptr};
};
constexpr size_t kMostGuarded = 256;
Guarded guarded[kMostGuarded];
struct sigaction previous;
uintptr_t page_size = 4096;
std::mutex lock;  // of taking and giving back ranges, and of `is_installed`
bool is_installed = false;

// Whatever was in charge before us is in charge of faults that are not ours.
void pass_on(int signal, siginfo_t* info, void* context) {
  if (previous.sa_flags & SA_SIGINFO) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    sigaction(signal, &previous, nullptr);  // the access is tried again on return, and ends the process
  }
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(info->si_addr);
  const int error = errno;
  for (Guarded& range : guarded) {
    const uintptr_t end = range.end.load(std::memory_order_acquire);
    if (at < range.begin.load(std::memory_order_relaxed) || at >= end) continue;
    // Everything behind the first page that is gone is gone too: one fault instead of one a page.
    const uintptr_t page = at / page_size * page_size;
    void* zeros = mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                       -1, 0);
    if (zeros == MAP_FAILED) break;
    range.is_damaged.load(std::memory_order_relaxed)->store(true, std::memory_order_relaxed);
    errno = error;
    return;
  }
  pass_on(signal, info, context);
}

size_t guard(const uint8_t* data, size_t size, std::atomic<bool>* is_damaged) {
  std::lock_guard<std::mutex> held(lock);
  if (!is_installed) {
    page_size = uintptr_t(sysconf(_SC_PAGESIZE));
    struct sigaction action = {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous) != 0) throw std::runtime_error("SIGBUS cannot be handled");
    is_installed = true;
  }
  for (size_t i = 0; i < kMostGuarded; ++i) {
    if (guarded[i].end.load(std::memory_order_relaxed) != 0) continue;
    guarded[i].begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
    guarded[i].is_damaged.store(is_damaged, std::memory_order_relaxed);
    guarded[i].end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_release);
    return i;
  }
  throw std::runtime_error("more than " + std::to_string(kMostGuarded) + " files are mapped");
}

}  // namespace

Mapping::Mapping(const std::string& path) : path_(path) {
  const auto failed = [&](const char* what) {
    return std::runtime_error(path + " cannot be " + what + ": " + std::strerror(errno));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would wait for its writer
  if (file < 0) throw failed("opened");
  struct stat status;
  void* data = MAP_FAILED;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0)
    data = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_SHARED, file, 0);
  const std::runtime_error error = failed("mapped");
  close(file);
  if (data == MAP_FAILED) throw error;
  data_ = static_cast<const uint8_t*>(data);
  size_ = size_t(status.st_size);
  try {
    guard_ = guard(data_, size_, &is_damaged_);
  } catch (...) {
    munmap(data, size_);
    throw;
  }
}

Mapping::~Mapping() {
  std::lock_guard<std::mutex> held(lock);
  guarded[guard_].end.store(0, std::memory_order_release);
  munmap(const_cast<uint8_t*>(data_), size_);
}

#else

Mapping::Mapping(const std::string& path) : path_(path) {
  throw std::runtime_error("files are not mapped on this system");
}
Mapping::~Mapping() = default;

#endif

}  // namespace forerun
