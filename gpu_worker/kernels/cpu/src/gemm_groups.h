// Products with weights in groups of 32 inputs that have their own scales (GGUF Q8_0, Q4_0, Q4_1), on inputs quantised
// by the same groups. A group's integer sum is exact; groups are added in order, in float.
#pragma once

#include "linear.h"

namespace cl {

constexpr int kGroupUnits = kGroupInputs / 4;
constexpr int kGroupVectors = kPanel / W;

// Weights of one group of a panel as u8 codes in unit order: [8 units][vectors of 16 outputs].
template <int Kind>
CL_INLINE void load_codes(const char* group, int v, VI* codes) {
  if (Kind == kWeightGroup8) {
    for (int u = 0; u < kGroupUnits; ++u) codes[u] = load_i(group + u * 64 + v * 4 * W);
    return;
  }
  // A byte holds the codes of units u (low) and u + 4 (high).
  for (int u = 0; u < kGroupUnits / 2; ++u) {
    const VI both = load_i(group + u * 64 + v * 4 * W);
    codes[u] = and_i(both, set1_i(0x0f0f0f0f));
    codes[u + kGroupUnits / 2] = and_i(shift_right(both, 4), set1_i(0x0f0f0f0f));
  }
}

CL_INLINE VF load_half(const char* p) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#else
  return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#endif
}

// Of a group of a panel; scales follow.
template <int Kind>
constexpr int code_bytes() { return Kind == kWeightGroup8 ? 512 : 256; }

// What a code's zero is: subtracted as zero * (sum of the group's inputs) before the scale.
template <int Kind>
constexpr int code_zero() { return Kind == kWeightGroup8 ? 128 : Kind == kWeightGroup4 ? 8 : 0; }

// tile[r][0..16) for R rows and one panel. scales and sums: those of the first row, see group_place.
template <int Kind, int R>
CL_INLINE void multiply_groups(const char* x, int64_t row_bytes, const float* scales, const void* sums,
                               const char* panel, int num_groups, float* tile, int tile_stride) {
  constexpr int V = kGroupVectors;
  VF total[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) total[r][v] = zero();
  for (int g = 0; g < num_groups; ++g) {
    const char* group = panel + int64_t(g) * group_bytes(Kind);
    ask_ahead(group, group_bytes(Kind));
    for (int v = 0; v < V; ++v) {
      VI codes[kGroupUnits];
      load_codes<Kind>(group, v, codes);
      const VF scale = load_half(group + code_bytes<Kind>() + v * 2 * W);
      for (int r = 0; r < R; ++r) {
        const int64_t at = int64_t(g) * kScaleRows + r;
        const char* inputs = x + r * row_bytes + g * kGroupInputs;
        VI sum = zero_i();
        if (Kind != kWeightGroup41) sum = set1_i(-code_zero<Kind>() * static_cast<const int32_t*>(sums)[at]);
        for (int u = 0; u < kGroupUnits; ++u) sum = mac_u8s8(sum, codes[u], broadcast_i(inputs + 4 * u));
        total[r][v] = fma(from_int(sum), mul(scale, set1(scales[at])), total[r][v]);
        if (Kind == kWeightGroup41) {
          const VF minimum = load_half(group + code_bytes<Kind>() + 32 + v * 2 * W);
          total[r][v] = fma(minimum, set1(static_cast<const float*>(sums)[at]), total[r][v]);
        }
      }
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) store(tile + r * tile_stride + v * W, total[r][v]);
}

constexpr int kGroupRows = W == 16 ? 8 : 4;

template <int Kind>
CL_INLINE void multiply_group_rows(int rows, const char* x, int64_t row_bytes, const float* scales,
                                   const void* sums, const char* panel, int num_groups, float* tile,
                                   int tile_stride) {
  switch (rows) {
    case 1: return multiply_groups<Kind, 1>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
    case 2: return multiply_groups<Kind, 2>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
    case 3: return multiply_groups<Kind, 3>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
#if defined(__AVX512F__)
    case 4: return multiply_groups<Kind, 4>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
    case 5: return multiply_groups<Kind, 5>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
    case 6: return multiply_groups<Kind, 6>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
    case 7: return multiply_groups<Kind, 7>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
#endif
    default:
      return multiply_groups<Kind, kGroupRows>(x, row_bytes, scales, sums, panel, num_groups, tile, tile_stride);
  }
}

}  // namespace cl
