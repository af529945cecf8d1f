// Products of attention for a block of query rows: scores against transposed keys, and weights against values.
#pragma once

#include "transpose.h"
#include "units.h"

namespace cl {

constexpr int kKeyVectors = 16 / W;                       // vectors that hold 16 keys
constexpr int kRowBlock = W == 16 ? 8 : 4;                // rows whose sums are held in registers
constexpr int kKeyChunks = W == 16 ? 2 : 1;               // chunks of 16 keys at once
constexpr int kChunkKeys = 16 * kKeyChunks;

// scores[r][0..kChunkKeys) = sum over units of q[r][u] * keys[chunk][u][key], u ascending.
template <class Units, int R>
CL_INLINE void score_rows(const char* const* q, const int32_t* keys, int num_units, float* scores, int score_stride) {
  constexpr int V = kKeyVectors * kKeyChunks;
  VF acc[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) acc[r][v] = zero();
  for (int u = 0; u < num_units; ++u) {
    VI k[V];
    for (int v = 0; v < V; ++v) {
      const int chunk = v / kKeyVectors, part = v % kKeyVectors;
      k[v] = load_i(keys + (chunk * num_units + u) * 16 + part * W);
    }
    for (int r = 0; r < R; ++r) {
      const VI a = broadcast_i(q[r] + 4 * u);
      for (int v = 0; v < V; ++v) acc[r][v] = Units::mac(acc[r][v], a, k[v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(scores + r * score_stride + v * W, acc[r][v]);
}

// out[r][0..2W) += sum over units of weights[r][u] * values[u][0..2W), u ascending.
template <class Units, int R>
CL_INLINE void weigh_rows(const int32_t* weights, int weight_stride, const int32_t* values, int value_stride,
                          int num_units, float* out, int out_stride) {
  VF acc[R][2];
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = zero();
  for (int u = 0; u < num_units; ++u) {
    const VI v0 = load_i(values + int64_t(u) * value_stride), v1 = load_i(values + int64_t(u) * value_stride + W);
    for (int r = 0; r < R; ++r) {
      const VI a = broadcast_i(weights + r * weight_stride + u);
      acc[r][0] = Units::mac(acc[r][0], a, v0);
      acc[r][1] = Units::mac(acc[r][1], a, v1);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(out + r * out_stride, acc[r][0]);
    store(out + r * out_stride + W, acc[r][1]);
  }
}

// Calls f with the number of rows as a constant, for 1 <= n <= kRowBlock.
template <class F>
CL_INLINE void with_rows(int n, F f) {
  switch (n) {
    case 1: return f(std::integral_constant<int, 1>());
    case 2: return f(std::integral_constant<int, 2>());
    case 3: return f(std::integral_constant<int, 3>());
#if defined(__AVX512F__)
    case 4: return f(std::integral_constant<int, 4>());
    case 5: return f(std::integral_constant<int, 5>());
    case 6: return f(std::integral_constant<int, 6>());
    case 7: return f(std::integral_constant<int, 7>());
#endif
    default: return f(std::integral_constant<int, kRowBlock>());
  }
}

// ---- values of consecutive keys as units: [unit][padded head_dim] dwords ----

// Head dimensions in dwords of a prepared value row, a multiple of 2W.
CL_INLINE int padded_dim(int head_dim) { return (head_dim + 2 * W - 1) / (2 * W) * (2 * W); }

// One unit from rows of `head_dim` numbers; a null row counts as zeros.
CL_INLINE void prepare_values(const bf16* first, const bf16* second, int head_dim, int32_t* out) {
  for (int d = 0; d < head_dim; d += 2 * W) {
    const int n = (head_dim - d) / 2 < W ? (head_dim - d) / 2 : W;
    const VI a = n == W ? load_i(first + d) : load_lanes(first + d, n);
    const VI b = !second ? zero_i() : n == W ? load_i(second + d) : load_lanes(second + d, n);
    store_i(out + d, zip_lo16(a, b));
    store_i(out + d + W, zip_hi16(a, b));
  }
}
CL_INLINE void prepare_values(const float* first, const float*, int head_dim, int32_t* out) {
  for (int d = 0; d < padded_dim(head_dim); d += W) {
    const int n = head_dim - d;
    store_i(out + d, n >= W ? load_i(first + d) : n > 0 ? load_lanes(first + d, n) : zero_i());
  }
}

// Sums over prepared values, times `factor`, to numbers in their own order. Writes head_dim of them.
CL_INLINE void write_row(const float* sums, float factor, int head_dim, bf16* out) {
  const VF f = set1(factor);
  int d = 0;
  for (; d + 2 * W <= head_dim; d += 2 * W) {
    VF a, b;
    unzip_lanes(load(sums + d), load(sums + d + W), &a, &b);
    store(out + d, mul(a, f));
    store(out + d + W, mul(b, f));
  }
  if (d == head_dim) return;
  VF a, b;
  bf16 rest[2 * W];
  unzip_lanes(load(sums + d), load(sums + d + W), &a, &b);
  store(rest, mul(a, f));
  store(rest + W, mul(b, f));
  std::memcpy(out + d, rest, size_t(head_dim - d) * sizeof(bf16));
}
CL_INLINE void write_row(const float* sums, float factor, int head_dim, float* out) {
  const VF f = set1(factor);
  int d = 0;
  for (; d + W <= head_dim; d += W) store(out + d, mul(load(sums + d), f));
  if (d == head_dim) return;
  float rest[W];
  store(rest, mul(load(sums + d), f));
  std::memcpy(out + d, rest, size_t(head_dim - d) * sizeof(float));
}

}  // namespace cl
