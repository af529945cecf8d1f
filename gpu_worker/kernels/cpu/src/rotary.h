// Rotary embedding of a step's queries and keys, and the write of keys and values into their pages.
#pragma once

#include <cstdint>

#include "abi.h"
#include "rows.h"

namespace cl {

constexpr int kMaxHeadDim = 512;

struct RotaryShape {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  float norm_eps;  // of the norms of heads, where there are any
};

struct RotaryCall {
  RotaryShape shape;
  const float* cos_sin;      // [.., head_dim]
  const int64_t* positions;  // [T] row of cos_sin for each token; null: the token's own number
  const int64_t* blocks;     // [T]
  const int64_t* offsets;    // [T]
  const void* q_norm;        // [head_dim] or null
  const void* k_norm;
  void* k_pages;
  void* v_pages;
};

// Token t: qkv is its packed query, key and value heads, q_out its rotated query heads. T is the type of pages and
// q_out, Norm that of the norms' weights.
template <class Norm, class In, class T>
CL_INLINE void rotate_and_store_token(const RotaryCall& call, int64_t t, const In* qkv, T* q_out) {
  const RotaryShape& s = call.shape;
  const int D = s.head_dim;
  const float* cos_sin = call.cos_sin + (call.positions ? call.positions[t] : t) * D;
  const int64_t page = call.blocks[t] * s.num_kv_heads;
  const auto place = [&](void* pages, int head) CL_LAMBDA_INLINE {
    return static_cast<T*>(pages) + ((page + head) * s.block_size + call.offsets[t]) * D;
  };
  float normed[kMaxHeadDim];
  for (int h = 0; h < s.num_heads + s.num_kv_heads; ++h) {
    const bool is_query = h < s.num_heads;
    const In* x = qkv + int64_t(h) * D;
    T* out = is_query ? q_out + int64_t(h) * D : place(call.k_pages, h - s.num_heads);
    const Norm* norm = static_cast<const Norm*>(is_query ? call.q_norm : call.k_norm);
    if (norm) {
      rms_norm_row(x, norm, D, s.norm_eps, normed);
      rotate_head(normed, cos_sin, D, out);
    } else {
      rotate_head(x, cos_sin, D, out);
    }
  }
  const In* v = qkv + int64_t(s.num_heads + s.num_kv_heads) * D;
  for (int h = 0; h < s.num_kv_heads; ++h) convert_row(v + int64_t(h) * D, D, place(call.v_pages, h));
}

}  // namespace cl
