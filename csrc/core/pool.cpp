#include "core/pool.h"

#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace forerun {

namespace {

constexpr int kSpins = 20000;  // some hundred microseconds; then a thread sleeps
constexpr int kSpinsBeforeYield = 2000;
constexpr long kMostThreads = 4096;

inline void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// The state of the current loop. `ticket` holds the loop's number and the next free piece, so that taking a piece is
// one compare-and-swap, which fails for a thread that still thinks of an earlier loop. What a thread read of a loop
// before such a swap succeeded belongs to that loop: nothing is overwritten before all its pieces are done.
struct Pool::Shared {
  static constexpr int kPieceBits = 32;
  static constexpr uint64_t kPieceMask = (uint64_t(1) << kPieceBits) - 1;

  alignas(64) std::atomic<uint64_t> ticket{0};
  std::atomic<int64_t> num_pieces{0};
  std::atomic<Function> function{nullptr};
  std::atomic<const void*> context{nullptr};
  alignas(64) std::atomic<int64_t> num_done{0};
  alignas(64) std::atomic<int> num_sleeping{0};
  std::atomic<bool> is_closed{false};
  std::mutex sleep;
  std::condition_variable wake;
  std::mutex turn;  // one loop at a time
  std::mutex failure_lock;
  std::exception_ptr failure;
};

Pool::Pool(int num_threads) : shared_(new Shared) {
  threads_.reserve(size_t(num_threads < 1 ? 1 : num_threads));
  try {
    while (num_threads_ < num_threads) {
      threads_.emplace_back([this] { work(); });
      ++num_threads_;
    }
  } catch (const std::exception&) {  // no more threads, or no memory for one: those that there are do the work
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(shared_->sleep);
    shared_->is_closed.store(true);
  }
  shared_->wake.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// Takes and does one piece of the current loop; false if there is none left to take.
bool Pool::take_one() {
  Shared& s = *shared_;
  uint64_t ticket = s.ticket.load(std::memory_order_acquire);
  for (;;) {
    const int64_t piece = int64_t(ticket & Shared::kPieceMask);
    const int64_t num_pieces = s.num_pieces.load(std::memory_order_acquire);
    const Function function = s.function.load(std::memory_order_acquire);
    const void* context = s.context.load(std::memory_order_acquire);
    if (piece >= num_pieces) return false;
    if (!s.ticket.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire))
      continue;
    do_piece(function, context, piece);
    s.num_done.fetch_add(1, std::memory_order_acq_rel);
    return true;
  }
}

void Pool::work() {
  Shared& s = *shared_;
  for (;;) {
    const uint64_t seen = s.ticket.load(std::memory_order_acquire) >> Shared::kPieceBits;
    while (take_one()) {
    }
    int spins = 0;
    while ((s.ticket.load(std::memory_order_acquire) >> Shared::kPieceBits) == seen) {
      if (s.is_closed.load(std::memory_order_acquire)) return;
      if (++spins < kSpins) {
        if (spins > kSpinsBeforeYield && spins % 64 == 0) std::this_thread::yield();
        pause();
        continue;
      }
      std::unique_lock<std::mutex> lock(s.sleep);
      s.num_sleeping.fetch_add(1, std::memory_order_seq_cst);
      s.wake.wait(lock, [&] {
        return s.is_closed.load() || (s.ticket.load(std::memory_order_seq_cst) >> Shared::kPieceBits) != seen;
      });
      s.num_sleeping.fetch_sub(1, std::memory_order_seq_cst);
      spins = 0;
    }
  }
}

void Pool::run_pieces(int64_t num_pieces, Function function, const void* context) {
  if (num_pieces <= 0) return;
  Shared& s = *shared_;
  std::lock_guard<std::mutex> turn(s.turn);
  if (num_threads_ == 1 || num_pieces == 1) {
    for (int64_t piece = 0; piece < num_pieces; ++piece) do_piece(function, context, piece);
    throw_failure();
    return;
  }
  // No piece can be taken while these change: a ticket that is all ones has no pieces, and a thread that holds the old
  // ticket and sees a new value (release, acquire) fails its swap.
  const uint64_t loop = (s.ticket.load(std::memory_order_relaxed) >> Shared::kPieceBits) + 1;
  s.ticket.store(loop << Shared::kPieceBits | Shared::kPieceMask, std::memory_order_seq_cst);
  s.num_done.store(0, std::memory_order_release);
  s.function.store(function, std::memory_order_release);
  s.context.store(context, std::memory_order_release);
  s.num_pieces.store(num_pieces, std::memory_order_release);
  s.ticket.store((loop + 1) << Shared::kPieceBits, std::memory_order_seq_cst);
  if (s.num_sleeping.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(s.sleep);
    s.wake.notify_all();
  }
  while (take_one()) {
  }
  for (int spins = 0; s.num_done.load(std::memory_order_acquire) < num_pieces; ++spins) {
    pause();
    if (spins > kSpinsBeforeYield) std::this_thread::yield();
  }
  throw_failure();
}

// A loop goes on when one of its pieces fails: all of them are done when it returns or throws.
void Pool::do_piece(Function function, const void* context, int64_t piece) {
  try {
    function(context, piece);
  } catch (...) {
    std::lock_guard<std::mutex> lock(shared_->failure_lock);
    if (!shared_->failure) shared_->failure = std::current_exception();
  }
}

void Pool::throw_failure() {
  if (!shared_->failure) return;
  std::exception_ptr failure;
  std::swap(failure, shared_->failure);
  std::rethrow_exception(failure);
}

namespace {

int usable_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : int(count);
}

int wanted_threads() {
  const char* text = std::getenv("FORERUN_THREADS");
  if (text == nullptr || *text == 0) return usable_cores();
  char* end = nullptr;
  const long count = std::strtol(text, &end, 10);
  if (*end != 0 || count < 1 || count > kMostThreads)
    throw std::runtime_error("FORERUN_THREADS=" + std::string(text) + " is no number of threads from 1 to " +
                             std::to_string(kMostThreads));
  return int(count);
}

std::mutex pool_lock;
Pool* the_pool = nullptr;  // never destroyed: threads may outlive static destructors

#if defined(__unix__) || defined(__APPLE__)
void forget_in_child() {
  the_pool = nullptr;  // its threads stayed in the parent; the object is leaked on purpose
  new (&pool_lock) std::mutex;
}
#endif

}  // namespace

Pool& Pool::shared() {
  std::lock_guard<std::mutex> lock(pool_lock);
  if (the_pool == nullptr) {
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
    (void)registered;
#endif
    the_pool = new Pool(wanted_threads());
  }
  return *the_pool;
}

}  // namespace forerun
