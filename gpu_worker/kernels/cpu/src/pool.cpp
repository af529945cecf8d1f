#include "pool.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <new>

#include "abi.h"

namespace cl {
namespace {

constexpr uint64_t kClosed = uint64_t(1) << 31;
constexpr uint64_t kCount = kClosed - 1;

void futex_wait(std::atomic<uint32_t>* word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}
void futex_wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}
int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t(t.tv_sec) * 1000000000 + t.tv_nsec;
}
// Advice: a system that refuses leaves the thread where it is.
void pin(pthread_t thread, int cpu) {
  cpu_set_t* set = CPU_ALLOC(size_t(cpu) + 1);
  if (!set) return;
  const size_t bytes = CPU_ALLOC_SIZE(size_t(cpu) + 1);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(size_t(cpu), bytes, set);
  pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
}
// True when `ready` held within the time.
template <class F>
bool spin(int64_t limit_ns, F ready) {
  if (ready()) return true;
  if (limit_ns <= 0) return false;
  const int64_t end = now_ns() + limit_ns;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
      _mm_pause();
    }
  } while (now_ns() < end);
  return false;
}

}  // namespace

struct Pool::Thread {
  Pool* pool;
  int index;
  pthread_t id;
};

Pool* Pool::create(int num_threads, int64_t spin_ns, const int32_t* cpus) {
  Pool* pool = new (std::nothrow) Pool;
  if (!pool) return nullptr;
  pool->num_threads_ = num_threads;
  pool->spin_ns_ = spin_ns;
  pool->shares_ = new (std::nothrow) Share[num_threads];
  pool->threads_ = new (std::nothrow) Thread[num_threads];
  bool ok = pool->shares_ && pool->threads_;
  for (int i = 1; ok && i < num_threads; ++i) {
    Thread& t = pool->threads_[i];
    t.pool = pool;
    t.index = i;
    ok = pthread_create(&t.id, nullptr, [](void* p) -> void* {
           auto* self = static_cast<Thread*>(p);
           self->pool->helper(self->index);
           return nullptr;
         }, &t) == 0;
    if (ok) pool->num_started_ = i;
    if (ok && cpus) pin(t.id, cpus[i]);
  }
  if (ok) return pool;
  delete pool;
  return nullptr;
}

Pool::~Pool() {
  ending_.store(true);
  bell_.fetch_add(1);
  futex_wake(&bell_);
  for (int i = 1; i <= num_started_; ++i) pthread_join(threads_[i].id, nullptr);
  delete[] shares_;
  delete[] threads_;
  std::free(scratch_);
}

bool Pool::reserve_scratch(size_t bytes) {
  bytes = (bytes + 63) & ~size_t(63);
  if (bytes <= scratch_bytes_) return true;
  void* grown = std::aligned_alloc(64, bytes * num_threads_);
  if (!grown) return false;
  std::free(scratch_);
  scratch_ = static_cast<char*>(grown);
  scratch_bytes_ = bytes;
  return true;
}

void Pool::run(int64_t count, Body body, void* context) {
  if (count <= 0) return;
  if (num_threads_ == 1 || count == 1) {
    for (int64_t i = 0; i < count; ++i) body(context, i, 0);
    return;
  }
  body_ = body;
  context_ = context;
  for (int t = 0; t < num_threads_; ++t) {
    shares_[t].end = count * (t + 1) / num_threads_;
    shares_[t].next.store(count * t / num_threads_, std::memory_order_relaxed);
  }
  const uint64_t epoch = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  state_.store((epoch & 0xffffffff) << 32, std::memory_order_release);
  bell_.fetch_add(1);
  if (num_asleep_.load() > 0) futex_wake(&bell_);
  work(0);
  const uint64_t state = state_.fetch_or(kClosed);
  if ((state & kCount) == 0) return;
  const auto left = [this] { return (state_.load() & kCount) == 0; };
  if (spin(spin_ns_, left)) return;
  caller_asleep_.store(1);
  for (;;) {
    const uint32_t rung = done_bell_.load();
    if (left()) break;
    futex_wait(&done_bell_, rung);
  }
  caller_asleep_.store(0);
}

void Pool::work(int thread) {
  for (int i = 0; i < num_threads_; ++i) {
    int victim = thread + i;
    if (victim >= num_threads_) victim -= num_threads_;
    Share& share = shares_[victim];
    for (;;) {
      if (share.next.load(std::memory_order_relaxed) >= share.end) break;
      const int64_t item = share.next.fetch_add(1, std::memory_order_relaxed);
      if (item >= share.end) break;
      body_(context_, item, thread);
    }
  }
}

// Enters the current job unless it is closed or was seen before.
bool Pool::join_job(uint64_t* seen) {
  uint64_t state = state_.load(std::memory_order_acquire);
  for (;;) {
    if ((state & kClosed) || (state >> 32) == *seen) return false;
    if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) break;
  }
  *seen = state >> 32;
  return true;
}

void Pool::helper(int thread) {
  uint64_t seen = 0;
  while (!ending_.load(std::memory_order_relaxed)) {
    const uint32_t rung = bell_.load();
    if (join_job(&seen)) {
      work(thread);
      const uint64_t before = state_.fetch_sub(1);
      if ((before & kClosed) && (before & kCount) == 1 && caller_asleep_.load()) {
        done_bell_.fetch_add(1);
        futex_wake(&done_bell_);
      }
      continue;
    }
    if (spin(spin_ns_, [&] { return bell_.load(std::memory_order_relaxed) != rung; })) continue;
    num_asleep_.fetch_add(1);
    futex_wait(&bell_, rung);
    num_asleep_.fetch_sub(1);
  }
}

}  // namespace cl

// cpus: the processor of each thread, of which the first, the caller's, is not applied; or null.
CL_EXPORT void* chairlift_pool_create(int32_t num_threads, int64_t spin_ns, const int32_t* cpus) {
  return cl::Pool::create(num_threads, spin_ns, cpus);
}
CL_EXPORT void chairlift_pool_destroy(void* pool) { delete static_cast<cl::Pool*>(pool); }

// What a process needs to do once before it runs this library. 0, or another number where the system refuses.
CL_EXPORT int32_t chairlift_prepare() {
#if defined(__AMX_TILE__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return int32_t(syscall(SYS_arch_prctl, kRequestPermission, kTileData));
#else
  return 0;
#endif
}
