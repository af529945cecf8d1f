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

// Steps of 64 bytes taken at once: two panels and 32 rows of so many lie in a first-level cache of 48 KiB together.
constexpr int kStepsAtOnce = 9;

// bf16, `steps` of the inputs. sums[r][panel * 16 ..] of `rows` <= 32 rows and two panels: begun, or gone on with.
// configure_tiles(rows) came before.
CL_INLINE void multiply_tiles(int rows, const char* x, int64_t row_bytes, const char* first, const char* second,
                              int steps, bool is_begun, int32_t* sums) {
  constexpr int kStride = 2 * kPanel * 4;
  int32_t* lower = sums + 16 * 2 * kPanel;
  finish_stores();
  if (is_begun) {
    _tile_loadd(0, sums, kStride);
    _tile_loadd(1, sums + kPanel, kStride);
    if (rows > 16) _tile_loadd(2, lower, kStride);
    if (rows > 16) _tile_loadd(3, lower + kPanel, kStride);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int k = 0; k < steps; ++k) {
    _tile_loadd(4, x + 64 * k, row_bytes);
    _tile_loadd(6, first + int64_t(k) * 1024, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, second + int64_t(k) * 1024, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (rows <= 16) continue;
    _tile_loadd(5, x + 16 * row_bytes + 64 * k, row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, sums, kStride);
  _tile_stored(1, sums + kPanel, kStride);
  if (rows > 16) _tile_stored(2, lower, kStride);
  if (rows > 16) _tile_stored(3, lower + kPanel, kStride);
}

// ---- 8-bit weights: a tile's sums leave it after every group of inputs ----

// Adds a group's integer sums to float totals, [row][two panels], with the group's scale in each row.
CL_INLINE void add_group(int rows, const int32_t* first, const int32_t* second, const float* scales, int groups,
                         float* out) {
  for (int r = 0; r < rows; ++r) {
    const VF scale = set1(scales[r * groups]);
    float* to = out + r * 2 * kPanel;
    store(to, fma(from_int(load_i(first + 16 * r)), scale, load(to)));
    store(to + kPanel, fma(from_int(load_i(second + 16 * r)), scale, load(to + kPanel)));
  }
}

// out[r][two panels] for 16 rows at most. Two groups at a time, so that four tiles are on their way at once.
CL_INLINE void multiply_byte_tiles(int rows, const char* x, int64_t row_bytes, const float* scales, const char* first,
                                   const char* second, int groups, float* out) {
  alignas(64) int32_t sums[4][256];
  std::memset(out, 0, size_t(rows) * 2 * kPanel * 4);
  finish_stores();
  int g = 0;
  for (; g + 2 <= groups; g += 2) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, x + 64 * g, row_bytes);
    _tile_loadd(6, first + int64_t(g) * 1024, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, second + int64_t(g) * 1024, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_loadd(5, x + 64 * g + 64, row_bytes);
    _tile_loadd(6, first + int64_t(g) * 1024 + 1024, 64);
    _tile_dpbssd(2, 5, 6);
    _tile_loadd(7, second + int64_t(g) * 1024 + 1024, 64);
    _tile_dpbssd(3, 5, 7);
    _tile_stored(0, sums[0], 64);
    _tile_stored(1, sums[1], 64);
    _tile_stored(2, sums[2], 64);
    _tile_stored(3, sums[3], 64);
    add_group(rows, sums[0], sums[1], scales + g, groups, out);
    add_group(rows, sums[2], sums[3], scales + g + 1, groups, out);
  }
  if (g == groups) return;
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(4, x + 64 * g, row_bytes);
  _tile_loadd(6, first + int64_t(g) * 1024, 64);
  _tile_dpbssd(0, 4, 6);
  _tile_loadd(7, second + int64_t(g) * 1024, 64);
  _tile_dpbssd(1, 4, 7);
  _tile_stored(0, sums[0], 64);
  _tile_stored(1, sums[1], 64);
  add_group(rows, sums[0], sums[1], scales + g, groups, out);
}

// All tiles have the rows of one block of at most 16.
CL_INLINE void configure_byte_tiles(int rows) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = uint8_t(t >= 6 ? 16 : rows);
  }
  load_config(c);
}

}  // namespace cl

#endif
