// Products of bf16 on AMX tiles: 16 outputs by 16 rows at a time, 64 bytes of inputs a step.
//
// A tile instruction sums in its own order, the same for every row: with AMX all batches take this way, one row too.
#pragma once

#if defined(__AMX_BF16__)

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

// More than 16 rows: asks for the whole tile of weights after this one. Fewer, which wait for memory alone: for one line
// in four of what comes 2 KiB later; the processor's own prefetch completes them, and tiles load no faster with more.
// Measured with 212 MB of weights a pass, one thread of a Xeon, against none: 32 rows 15.8 ms instead of 18.2 (the way
// of fewer gains nothing there), one row 13.0 instead of 14.0.
CL_INLINE void ask_for_next(const char* weights, int rows) {
  const int from = rows <= 16 ? 2048 : 1024, step = rows <= 16 ? 256 : 64;
  for (int i = from; i < from + 1024; i += step) _mm_prefetch(weights + i, _MM_HINT_T1);
}

// Weights to ask memory for while others are multiplied: `lines` of 64 bytes a step.
struct Wanted {
  bool is_cold;  // or: those that are multiplied themselves, a little ahead
  const char* from;
  int lines;
};

// bf16, `steps` of the inputs. sums[r][panel * 16 ..] of `rows` <= 32 rows and two panels: begun, or gone on with.
// configure_tiles(rows) came before.
CL_INLINE void multiply_tiles(int rows, const char* x, int64_t row_bytes, const char* first, const char* second,
                              int steps, bool is_begun, Wanted wanted, float* sums) {
  constexpr int kStride = 2 * kPanel * 4;
  float* lower = sums + 16 * 2 * kPanel;
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
    for (int i = 0; i < wanted.lines; ++i) _mm_prefetch(wanted.from + (k * wanted.lines + i) * 64, _MM_HINT_T1);
    _tile_loadd(4, x + 64 * k, row_bytes);
    if (wanted.is_cold) ask_for_next(first + int64_t(k) * 1024, rows);
    _tile_loadd(6, first + int64_t(k) * 1024, 64);
    _tile_dpbf16ps(0, 4, 6);
    if (wanted.is_cold) ask_for_next(second + int64_t(k) * 1024, rows);
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

}  // namespace cl

#endif
