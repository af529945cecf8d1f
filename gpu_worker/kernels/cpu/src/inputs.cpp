// Rows of numbers to the inputs of quantised weights, as a single call.
#include "pool.h"
#include "quantise.h"

// x: [num_rows, n] contiguous. codes: [num_rows, n rounded up to 64]; scales and sums: [num_rows rounded up to 16,
// input_groups], in the order of group_place.
CL_EXPORT void chairlift_quantise(void* pool, int32_t kind, int32_t dtype, const void* x, int64_t num_rows, int32_t n,
                                  int8_t* codes, float* scales, void* sums) {
  auto body = [&](int64_t row, int) {
    int8_t* to = codes + row * cl::quantised_row_bytes(n);
    if (dtype == cl::kBFloat16) {
      cl::quantise_row(kind, static_cast<const cl::bf16*>(x) + row * n, n, row, to, scales, sums);
    } else {
      cl::quantise_row(kind, static_cast<const float*>(x) + row * n, n, row, to, scales, sums);
    }
  };
  static_cast<cl::Pool*>(pool)->each(num_rows, body);
}
