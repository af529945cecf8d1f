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

// One step of 64 bytes: sums += inputs x weights, for two panels and one or two row halves.
#define CL_TILE_MAC(product, sums, inputs, weights)                     \
  do {                                                                  \
    if (std::is_same<product, Bf16Product>::value)                      \
      _tile_dpbf16ps(sums, inputs, weights);                            \
    else                                                                \
      _tile_dpbsud(sums, inputs, weights);                              \
  } while (0)

// tile[r][panel * 16 ..] for `rows` <= 32 rows and two panels. configure_tiles(rows) came before.
template <class Product>
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
      CL_TILE_MAC(Product, 0, 4, 6);
      _tile_loadd(7, second + int64_t(u) * 64, 64);
      CL_TILE_MAC(Product, 1, 4, 7);
      _tile_loadd(5, x + 16 * row_bytes + 4 * u, row_bytes);
      CL_TILE_MAC(Product, 2, 5, 6);
      CL_TILE_MAC(Product, 3, 5, 7);
    }
    _tile_stored(2, tile + 16 * 2 * kPanel, 2 * kPanel * 4);
    _tile_stored(3, tile + 16 * 2 * kPanel + kPanel, 2 * kPanel * 4);
  } else {
    for (int u = 0; u < units; u += 16) {
      _tile_loadd(4, x + 4 * u, row_bytes);
      _tile_loadd(6, first + int64_t(u) * 64, 64);
      CL_TILE_MAC(Product, 0, 4, 6);
      _tile_loadd(7, second + int64_t(u) * 64, 64);
      CL_TILE_MAC(Product, 1, 4, 7);
    }
  }
  _tile_stored(0, tile, 2 * kPanel * 4);
  _tile_stored(1, tile + kPanel, 2 * kPanel * 4);
}

#undef CL_TILE_MAC

}  // namespace cl

#endif
