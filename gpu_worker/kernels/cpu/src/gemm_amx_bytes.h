// Products of quantised weights on AMX tiles, for whole blocks of 8 or 16 rows: 8-bit weights with a scale an output,
// and GGUF's groups.
//
// A group's integer sum is exact, and what follows are the float operations of gemm_bytes.h and gemm_groups.h in their
// order: whether a row goes through tiles or vectors leaves no trace in its bits.
#pragma once

#if defined(__AMX_INT8__)

#include "amx.h"
#include "gemm_groups.h"

namespace cl {

constexpr int kUnpackedBytes = kGroupUnits * 64;

template <int Kind>
constexpr int tile_inputs() { return Kind == kWeightInt8 ? kByteGroupInputs : kGroupInputs; }
// Of one group's codes as a tile takes them.
template <int Kind>
constexpr int tile_bytes() { return tile_inputs<Kind>() * kPanel; }

// One GGUF group's codes as signed bytes, less their zero where they have one: a tile of 8 units by 16 outputs.
template <int Kind>
CL_INLINE void unpack_codes(const char* group, char* out) {
  VI codes[kGroupUnits];
  load_codes<Kind>(group, 0, codes);
  for (int u = 0; u < kGroupUnits; ++u) {
    store_i(out + 64 * u, _mm512_sub_epi8(codes[u], _mm512_set1_epi8(char(code_zero<Kind>()))));
  }
}

// Tiles 0-1 sums, 4-5 inputs of `rows` rows, 6-7 weights.
template <int Kind>
CL_INLINE void configure_byte_tiles(int rows) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = uint16_t(t == 4 || t == 5 ? tile_inputs<Kind>() : 64);
    c.rows[t] = uint8_t(t >= 6 ? tile_inputs<Kind>() / 4 : rows);
  }
  load_config(c);
}

#define CL_SUM(tile, inputs, weights)                                                 \
  do {                                                                                \
    _tile_zero(tile);                                                                 \
    _tile_loadd(inputs, x + tile * tile_inputs<Kind>(), row_bytes);                   \
    _tile_loadd(weights, codes + tile * tile_bytes<Kind>(), 64);                      \
    _tile_dpbssd(tile, inputs, weights);                                              \
    _tile_stored(tile, sums + tile * R * kPanel, 64);                                 \
  } while (0)

// sums[group][R rows][16] of one group or two.
template <int Kind, int R>
CL_INLINE void sum_groups(const char* x, int64_t row_bytes, const char* codes, int count, int32_t* sums) {
  CL_SUM(0, 4, 6);
  if (count > 1) CL_SUM(1, 5, 7);
}
#undef CL_SUM

// totals[r][0..16) of R rows and one panel, for `count` groups: begun, or gone on with. x, scales and offsets (the sums
// of kWeightGroup41; both see group_place), weights (for their scales) and codes are at the first group;
// configure_byte_tiles(R) came before.
//
// Two groups are on their way through tiles and memory while the two before them are added. All in one function, so
// that totals stay in registers.
template <int Kind, int R>
CL_INLINE void multiply_tile_groups(const char* x, int64_t row_bytes, const float* scales, const float* offsets,
                                    const char* weights, const char* codes, int count, bool is_begun, float* totals,
                                    int stride) {
  alignas(64) int32_t sums[2][2 * R * kPanel];
  VF total[R];
  for (int r = 0; r < R; ++r) total[r] = is_begun ? load(totals + r * stride) : zero();
  finish_stores();
  sum_groups<Kind, R>(x, row_bytes, codes, count, sums[0]);
  for (int g = 0, turn = 0; g < count; g += 2, turn ^= 1) {
    if (g + 2 < count) {
      sum_groups<Kind, R>(x + (g + 2) * tile_inputs<Kind>(), row_bytes, codes + int64_t(g + 2) * tile_bytes<Kind>(),
                          count - g - 2, sums[turn ^ 1]);
    }
    for (int i = g; i < count && i < g + 2; ++i) {
      const char* halves = weights + int64_t(i) * group_bytes(Kind) + code_bytes<Kind>();
      const VF scale = Kind == kWeightInt8 ? zero() : load_half(halves);
      const VF minimum = Kind == kWeightGroup41 ? load_half(halves + 32) : zero();
      const int32_t* from = sums[turn] + (i - g) * R * kPanel;
      for (int r = 0; r < R; ++r) {
        const VF input_scale = set1(scales[i * kScaleRows + r]);
        const VF factor = Kind == kWeightInt8 ? input_scale : mul(scale, input_scale);
        total[r] = fma(from_int(load_i(from + r * kPanel)), factor, total[r]);
        if (Kind == kWeightGroup41) total[r] = fma(minimum, set1(offsets[i * kScaleRows + r]), total[r]);
      }
    }
  }
  for (int r = 0; r < R; ++r) store(totals + r * stride, total[r]);
}

}  // namespace cl

#endif
