// The same products on AMX tiles: 16 outputs by 16 rows at a time, 64 bytes of inputs a step.
//
// A tile instruction sums in its own order, the same for every row: with AMX all batches take this way, one row too.
#pragma once

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)

#include "amx.h"
#include "gemm_rows.h"

namespace cl {

constexpr int kAmxRows = 32;  // of a block: two tiles

// Tiles 0-3 sums [rows half][panel], 4-5 inputs, 6-7 weights.
CL_INLINE void configure_tiles(int rows) {
  TileConfig c;
  const int first = rows < 16 ? rows : 16, second = rows > 16 ? rows - 16 : 1;
  for (int t = 0; t < 8; ++t) {
    const bool is_second = t == 2 || t == 3 || t == 5;
    c.row_bytes[t] = 64;
    c.rows[t] = uint8_t(t >= 6 ? 16 : is_second ? second : first);
  }
  load_config(c);
}

// bf16. tile[r][panel * 16 ..] for `rows` <= 32 rows and two panels. configure_tiles(rows) came before.
CL_INLINE void multiply_tiles(int rows, const char* x, int64_t row_bytes, const char* first, const char* second,
                              int units, int32_t* tile) {
  finish_stores();
  _tile_zero(0);
  _tile_zero(1);
  if (rows > 16) {
    _tile_zero(2);
    _tile_zero(3);
    for (int u = 0; u < units; u += 16) {
      _tile_loadd(4, x + 4 * u, row_bytes);
      _tile_loadd(6, first + int64_t(u) * 64, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, second + int64_t(u) * 64, 64);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, x + 16 * row_bytes + 4 * u, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, tile + 16 * 2 * kPanel, 2 * kPanel * 4);
    _tile_stored(3, tile + 16 * 2 * kPanel + kPanel, 2 * kPanel * 4);
  } else {
    for (int u = 0; u < units; u += 16) {
      _tile_loadd(4, x + 4 * u, row_bytes);
      _tile_loadd(6, first + int64_t(u) * 64, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, second + int64_t(u) * 64, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
  }
  _tile_stored(0, tile, 2 * kPanel * 4);
  _tile_stored(1, tile + kPanel, 2 * kPanel * 4);
}

// 8-bit weights: a tile's sums leave it after every group of inputs. out[r][0..16) for 16 rows at most, of which R are
// summed: the last of `rows` stands in for those that are missing.
template <int R>
CL_INLINE void multiply_byte_tile(int rows, const char* x, int64_t row_bytes, const float* scales, const char* panel,
                                  int groups, float* out, int out_stride) {
  alignas(64) int32_t sums[2][256];
  VF total[R];
  for (int r = 0; r < R; ++r) total[r] = zero();
  finish_stores();
  for (int g = 0; g < groups; ++g) {
    int32_t* sum = sums[g & 1];
    _tile_zero(0);
    _tile_loadd(4, x + 64 * g, row_bytes);
    _tile_loadd(6, panel + int64_t(g) * 1024, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_stored(0, sum, 64);
    for (int r = 0; r < R; ++r) {
      const int row = r < rows ? r : rows - 1;
      total[r] = fma(from_int(load_i(sum + 16 * row)), set1(scales[row * groups + g]), total[r]);
    }
  }
  for (int r = 0; r < R && r < rows; ++r) store(out + r * out_stride, total[r]);
}

CL_INLINE void multiply_byte_tiles(int rows, const char* x, int64_t row_bytes, const float* scales, const char* panel,
                                   int groups, float* out, int out_stride) {
  if (rows == 1) return multiply_byte_tile<1>(rows, x, row_bytes, scales, panel, groups, out, out_stride);
  if (rows <= 4) return multiply_byte_tile<4>(rows, x, row_bytes, scales, panel, groups, out, out_stride);
  if (rows <= 8) return multiply_byte_tile<8>(rows, x, row_bytes, scales, panel, groups, out, out_stride);
  return multiply_byte_tile<16>(rows, x, row_bytes, scales, panel, groups, out, out_stride);
}

}  // namespace cl

#endif
