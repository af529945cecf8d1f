// The operations between matrix products as single calls, for a decoder that goes operation by operation.
#include "pool.h"
#include "rotary.h"

namespace cl {
namespace {

// Rows are handed out in groups: a row alone is shorter than the handing out.
constexpr int64_t kGroup = 4;

template <class F>
void each_row(void* pool, int64_t num_rows, F f) {
  auto body = [&](int64_t group, int) {
    const int64_t end = (group + 1) * kGroup < num_rows ? (group + 1) * kGroup : num_rows;
    for (int64_t row = group * kGroup; row < end; ++row) f(row);
  };
  static_cast<Pool*>(pool)->each((num_rows + kGroup - 1) / kGroup, body);
}

template <class T>
void rms_norm(void* pool, const T* x, T* residual, const T* weight, T* out, int64_t num_rows, int n, float eps) {
  each_row(pool, num_rows, [&](int64_t row) {
    const T* in = x + row * n;
    if (residual) {
      add_row(in, residual + row * n, n);
      in = residual + row * n;
    }
    rms_norm_row(in, weight, n, eps, out + row * n);
  });
}

template <class T>
void silu_mul(void* pool, const T* gate_up, T* out, int64_t num_rows, int n) {
  each_row(pool, num_rows, [&](int64_t row) {
    const T* gate = gate_up + row * 2 * n;
    silu_mul_row(gate, gate + n, n, out + row * n);
  });
}

template <class T>
void rotate_and_store(void* pool, const RotaryCall& call, const T* qkv, T* q, int64_t num_tokens) {
  const RotaryShape& s = call.shape;
  const int64_t width = int64_t(s.num_heads + 2 * s.num_kv_heads) * s.head_dim;
  each_row(pool, num_tokens, [&](int64_t t) {
    rotate_and_store_token<T>(call, t, qkv + t * width, q + t * s.num_heads * s.head_dim);
  });
}

}  // namespace
}  // namespace cl

// x, residual, out: [num_rows, n] contiguous. With a residual: it takes the sum, of which the norm is. Without: null.
CL_EXPORT void chairlift_rms_norm(void* pool, int32_t dtype, const void* x, void* residual, const void* weight,
                                  void* out, int64_t num_rows, int32_t n, float eps) {
  using cl::bf16;
  if (dtype == cl::kBFloat16) {
    cl::rms_norm(pool, (const bf16*)x, (bf16*)residual, (const bf16*)weight, (bf16*)out, num_rows, n, eps);
  } else {
    cl::rms_norm(pool, (const float*)x, (float*)residual, (const float*)weight, (float*)out, num_rows, n, eps);
  }
}

// gate_up: [num_rows, 2 n], out: [num_rows, n].
CL_EXPORT void chairlift_silu_mul(void* pool, int32_t dtype, const void* gate_up, void* out, int64_t num_rows,
                                  int32_t n) {
  if (dtype == cl::kBFloat16) {
    cl::silu_mul(pool, (const cl::bf16*)gate_up, (cl::bf16*)out, num_rows, n);
  } else {
    cl::silu_mul(pool, (const float*)gate_up, (float*)out, num_rows, n);
  }
}

CL_EXPORT void chairlift_rotate_and_store(void* pool, int32_t dtype, const cl::RotaryCall* call, const void* qkv,
                                          void* q, int64_t num_tokens) {
  if (dtype == cl::kBFloat16) {
    cl::rotate_and_store(pool, *call, (const cl::bf16*)qkv, (cl::bf16*)q, num_tokens);
  } else {
    cl::rotate_and_store(pool, *call, (const float*)qkv, (float*)q, num_tokens);
  }
}
