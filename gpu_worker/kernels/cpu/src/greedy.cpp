// The largest number of each row: greedy sampling.
#include <limits>

#include "abi.h"
#include "pool.h"
#include "rows.h"

namespace cl {
namespace {

constexpr int64_t kNone = -1;

// Index of the largest of n numbers, the lowest among equals; kNone when one is NaN.
int64_t largest_index(const float* x, int64_t n) {
  const int64_t whole = n / W * W;
  VF high = set1(-std::numeric_limits<float>::infinity());
  unsigned nan = 0;
  for (int64_t i = 0; i < whole; i += W) {
    const VF v = load(x + i);
    nan |= nan_lanes(v);
    high = vmax(high, v);
  }
  float largest = reduce_max(high);
  for (int64_t i = whole; i < n; ++i) {
    nan |= x[i] != x[i];
    largest = x[i] > largest ? x[i] : largest;
  }
  if (nan) return kNone;
  for (int64_t i = 0; i < whole; i += W) {
    if (const unsigned found = equal_lanes(load(x + i), set1(largest))) return i + __builtin_ctz(found);
  }
  int64_t i = whole;
  while (x[i] != largest) ++i;
  return i;
}

}  // namespace
}  // namespace cl

// logits: [num_rows, n]; out: [num_rows].
CL_EXPORT void chairlift_greedy(void* pool, const float* logits, int64_t num_rows, int64_t n, int64_t* out) {
  auto body = [&](int64_t row, int) { out[row] = cl::largest_index(logits + row * n, n); };
  static_cast<cl::Pool*>(pool)->each(num_rows, body);
}
