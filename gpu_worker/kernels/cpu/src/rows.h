// Small operations on one row of numbers: RMS norm, SiLU times gate, rotary embedding. Loads, stores and arithmetic of
// a number depend on its index in the row only.
#pragma once

#include "simd.h"

namespace cl {

// Lanes [0, n) of a row's last, incomplete vector; the rest is 0.
template <class T>
CL_INLINE VF load_part(const T* p, int n) {
  if (n >= W) return load(p);
  T full[W] = {};
  std::memcpy(full, p, size_t(n) * sizeof(T));
  return load(full);
}
template <class T>
CL_INLINE void store_part(T* p, VF x, int n) {
  if (n >= W) return store(p, x);
  T full[W];
  store(full, x);
  std::memcpy(p, full, size_t(n) * sizeof(T));
}

// 1 / rms(x). The sum runs in four interleaved vectors, added pairwise at the end.
template <class T>
CL_INLINE float inverse_rms(const T* x, int n, float eps) {
  VF sum[4] = {zero(), zero(), zero(), zero()};
  for (int i = 0, k = 0; i < n; i += W, k = (k + 1) & 3) {
    const VF v = load_part(x + i, n - i);
    sum[k] = fma(v, v, sum[k]);
  }
  const float total = reduce_add(add(add(sum[0], sum[1]), add(sum[2], sum[3])));
  return 1.0f / std::sqrt(total / float(n) + eps);
}

template <class In, class T, class Out>
CL_INLINE void rms_norm_row(const In* x, const T* weight, int n, float eps, Out* out) {
  const VF k = set1(inverse_rms(x, n, eps));
  for (int i = 0; i < n; i += W) {
    store_part(out + i, mul(mul(load_part(x + i, n - i), k), load_part(weight + i, n - i)), n - i);
  }
}

template <class T>
CL_INLINE void add_row(const T* x, T* residual, int n) {
  for (int i = 0; i < n; i += W) {
    store_part(residual + i, add(load_part(x + i, n - i), load_part(residual + i, n - i)), n - i);
  }
}

template <class In, class T>
CL_INLINE void silu_mul_row(const In* gate, const In* up, int n, T* out) {
  for (int i = 0; i < n; i += W) {
    store_part(out + i, mul(silu(load_part(gate + i, n - i)), load_part(up + i, n - i)), n - i);
  }
}

// Dimension i goes with i + head_dim / 2 (GPT-NeoX order). cos_sin: head_dim / 2 cosines, then as many sines.
template <class In, class T>
CL_INLINE void rotate_head(const In* x, const float* cos_sin, int head_dim, T* out) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; i += W) {
    const int n = half - i;
    const VF a = load_part(x + i, n), b = load_part(x + half + i, n);
    const VF c = load_part(cos_sin + i, n), s = load_part(cos_sin + half + i, n);
    store_part(out + i, sub(mul(a, c), mul(b, s)), n);
    store_part(out + half + i, add(mul(b, c), mul(a, s)), n);
  }
}

template <class In, class T>
CL_INLINE void convert_row(const In* x, int n, T* out) {
  for (int i = 0; i < n; i += W) store_part(out + i, load_part(x + i, n - i), n - i);
}

}  // namespace cl
