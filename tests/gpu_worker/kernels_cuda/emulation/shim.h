// Runs a CUDA C++ kernel on a CPU, for tests: a fiber a thread, one block of threads after another, round robin, so that
// a run is repeatable. Knows threadIdx, blockIdx, gridDim, static __shared__, __syncthreads and __shfl_xor_sync. Threads
// that wait for each other at different barriers are reported as a deadlock.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __restrict__

typedef uint16_t u16;
typedef uint32_t u32;
typedef int64_t i64;

inline float __uint_as_float(u32 bits) { float value; memcpy(&value, &bits, 4); return value; }
inline u32 __float_as_uint(float value) { u32 bits; memcpy(&bits, &value, 4); return bits; }

namespace emulation {
constexpr int kWarp = 32;
constexpr size_t kStack = 128 << 10;

struct Index { int x = 0, y = 0, z = 0; };

struct Barrier {
  int waiting = 0;
  long generation = 0;
};

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStack]};
  bool is_done = false;
};

inline ucontext_t scheduler;
inline std::vector<Fiber> fibers;
inline std::vector<Barrier> warp_barriers;
inline std::vector<float> exchanged;
inline Barrier block_barrier;
inline Index block, grid;
inline int current = 0;
inline std::function<void()> body;

inline void yield() { swapcontext(&fibers[current].context, &scheduler); }

inline void arrive(Barrier& barrier, int members) {
  const long generation = barrier.generation;
  if (++barrier.waiting == members) {
    barrier.waiting = 0;
    ++barrier.generation;
  }
  while (barrier.generation == generation) yield();
}

inline float shuffle_xor(float value, int mask) {
  const int first = current / kWarp * kWarp;
  const int members = std::min<int>(kWarp, fibers.size() - first);
  Barrier& barrier = warp_barriers[current / kWarp];
  exchanged[current] = value;
  arrive(barrier, members);
  const float other = exchanged[first + ((current % kWarp) ^ mask)];
  arrive(barrier, members);
  return other;
}

inline void run_fiber() {
  body();
  fibers[current].is_done = true;
  yield();
}

inline long progress() {
  long sum = block_barrier.generation + block_barrier.waiting;
  for (const Barrier& barrier : warp_barriers) sum += barrier.generation + barrier.waiting;
  return sum;
}

inline void run_block(int num_threads) {
  block_barrier = Barrier{};
  warp_barriers.assign((num_threads + kWarp - 1) / kWarp, Barrier{});
  for (int i = 0; i < num_threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.is_done = false;
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStack;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, run_fiber, 0);
  }
  int left = num_threads;
  while (left > 0) {
    const long before = progress();
    const int left_before = left;
    for (current = 0; current < num_threads; ++current) {
      if (fibers[current].is_done) continue;
      swapcontext(&scheduler, &fibers[current].context);
      left -= fibers[current].is_done;
    }
    if (left == left_before && progress() == before) {
      fprintf(stderr, "emulation: deadlock in block %d,%d,%d\n", block.x, block.y, block.z);
      abort();
    }
  }
}

inline void launch(Index size, int num_threads, std::function<void()> work) {
  grid = size;
  body = std::move(work);
  fibers.resize(num_threads);
  exchanged.assign(num_threads, 0.f);
  for (block.z = 0; block.z < size.z; ++block.z)
    for (block.y = 0; block.y < size.y; ++block.y)
      for (block.x = 0; block.x < size.x; ++block.x) run_block(num_threads);
}
}  // namespace emulation

#define threadIdx (emulation::Index{emulation::current, 0, 0})
#define blockIdx emulation::block
#define gridDim emulation::grid
#define __syncthreads() emulation::arrive(emulation::block_barrier, emulation::fibers.size())
#define __shfl_xor_sync(mask, value, lanes) emulation::shuffle_xor(value, lanes)
