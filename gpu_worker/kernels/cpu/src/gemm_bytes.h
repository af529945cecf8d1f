// Products with 8-bit weights that have a scale an output, on inputs quantised by groups of 64. A group's integer sum is
// exact; groups are added in order, in float, with the scale of the inputs. The outputs' scales come last.
#pragma once

#include "gemm_rows.h"

namespace cl {

constexpr int kByteGroupUnits = kByteGroupInputs / 4;

// Weights as unsigned codes around 128, however the panel has them.
CL_INLINE VI load_unsigned(const char* p) {
  return kByteZero == 128 ? load_i(p) : xor_i(load_i(p), set1_i(int32_t(0x80808080u)));
}

// sums[r][0..16) for R rows and one panel. scales and group_sums: those of the first row, see group_place.
template <int R>
CL_INLINE void multiply_bytes(const char* x, int64_t row_bytes, const float* scales, const int32_t* group_sums,
                              const char* panel, int groups, float* out, int out_stride) {
  constexpr int V = kPanelVectors;
  VF total[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) total[r][v] = zero();
  for (int g = 0; g < groups; ++g) {
    ask_ahead(panel + int64_t(g) * kByteGroupInputs * kPanel, kByteGroupInputs * kPanel);
    VI sum[R][V];
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sum[r][v] = set1_i(-128 * group_sums[g * kScaleRows + r]);
    for (int u = g * kByteGroupUnits; u < (g + 1) * kByteGroupUnits; ++u) {
      VI w[V];
      for (int v = 0; v < V; ++v) w[v] = load_unsigned(panel + int64_t(u) * 64 + v * 4 * W);
      for (int r = 0; r < R; ++r) {
        const VI a = broadcast_i(x + r * row_bytes + 4 * u);
        for (int v = 0; v < V; ++v) sum[r][v] = mac_u8s8(sum[r][v], w[v], a);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) total[r][v] = fma(from_int(sum[r][v]), set1(scales[g * kScaleRows + r]), total[r][v]);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(out + r * out_stride + v * W, total[r][v]);
}

constexpr int kByteRows = W == 16 ? 8 : 2;

CL_INLINE void multiply_byte_rows(int rows, const char* x, int64_t row_bytes, const float* scales,
                                  const int32_t* group_sums, const char* panel, int groups, float* out,
                                  int out_stride) {
  switch (rows) {
    case 1: return multiply_bytes<1>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
#if defined(__AVX512F__)
    case 2: return multiply_bytes<2>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
    case 3: return multiply_bytes<3>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
    case 4: return multiply_bytes<4>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
    case 5: return multiply_bytes<5>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
    case 6: return multiply_bytes<6>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
    case 7: return multiply_bytes<7>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
#endif
    default: return multiply_bytes<kByteRows>(x, row_bytes, scales, group_sums, panel, groups, out, out_stride);
  }
}

}  // namespace cl
