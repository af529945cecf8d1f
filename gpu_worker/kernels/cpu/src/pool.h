// A team of threads that shares its cores with busy neighbours.
//
// A job is a number of items. Each thread starts on its own contiguous share and steals from the others when that is
// done, so a thread that the system holds back costs at most the one item it is in; one that has not woken up costs
// nothing. Waiting spins for a bounded time, then sleeps on a futex, which lets the system move a held-back thread to
// the core just freed. Which thread runs an item never changes its result.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cl {

class Pool {
 public:
  using Body = void (*)(void* context, int64_t item, int thread);

  static constexpr int kMaxThreads = 256;

  // Null when memory or threads cannot be had. `num_threads` counts the calling thread.
  static Pool* create(int num_threads, int64_t spin_ns, const int32_t* cpus);
  ~Pool();

  // Runs body(item, thread) once for every item in [0, count). Returns when all are done. One caller at a time.
  void run(int64_t count, Body body, void* context);

  template <class F>
  void each(int64_t count, F& body) {
    run(count, [](void* f, int64_t item, int thread) { (*static_cast<F*>(f))(item, thread); }, &body);
  }

  // At least `bytes` of 64-byte aligned memory for each thread, kept until the pool ends. False when out of memory.
  bool reserve_scratch(size_t bytes);
  void* scratch(int thread) { return scratch_ + size_t(thread) * scratch_bytes_; }

  int num_threads() const { return num_threads_; }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  struct Thread;

  Pool() = default;
  void work(int thread);
  void helper(int thread);
  bool join_job(uint64_t* seen);

  // epoch << 32 | closed << 31 | number of helpers inside.
  alignas(64) std::atomic<uint64_t> state_{uint64_t(1) << 31};
  alignas(64) std::atomic<uint32_t> bell_{0};  // rung at every job, futex word of sleeping helpers
  std::atomic<int> num_asleep_{0};
  alignas(64) std::atomic<uint32_t> done_bell_{0};  // futex word of a caller that waits for helpers
  std::atomic<int> caller_asleep_{0};
  std::atomic<bool> ending_{false};
  Body body_ = nullptr;
  void* context_ = nullptr;
  int num_threads_ = 1;
  int64_t spin_ns_ = 0;
  Share* shares_ = nullptr;
  Thread* threads_ = nullptr;
  int num_started_ = 0;
  char* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace cl
