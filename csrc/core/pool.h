// One team of threads for the whole process, and loops over numbered pieces of work.
//
// A loop ends when its pieces are done, not when every thread has come by: a thread whose core was taken away costs at
// most the piece it holds. Between loops the threads spin for a moment, because the next loop of a forward pass is
// microseconds away, and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

class Pool {
 public:
  // `num_threads` counts the caller of `run`. Fewer are made where the system allows no more.
  explicit Pool(int num_threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // The process's team. It is made at first use with one thread per usable core (FORERUN_THREADS overrides;
  // std::runtime_error where that is no number of threads), anew in a forked child, where the parent's threads do not
  // exist.
  static Pool& shared();

  int num_threads() const { return num_threads_; }

  // Calls body(piece) once for each piece of 0 .. num_pieces - 1, in any order and on any thread, and returns when all
  // are done. What a body throws is thrown here, once, after all pieces. Calls from several threads take turns; a body
  // must not call `run`.
  template <class Body>
  void run(int64_t num_pieces, const Body& body) {
    const Function call = [](const void* context, int64_t piece) { (*static_cast<const Body*>(context))(piece); };
    run_pieces(num_pieces, call, &body);
  }

 private:
  using Function = void (*)(const void* context, int64_t piece);
  struct Shared;

  void run_pieces(int64_t num_pieces, Function function, const void* context);
  void work();
  bool take_one();
  void do_piece(Function function, const void* context, int64_t piece);
  void throw_failure();

  int num_threads_ = 1;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace forerun
