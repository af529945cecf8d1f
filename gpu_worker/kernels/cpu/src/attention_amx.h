// Products of attention on AMX tiles, for bf16. Scores are computed transposed, a tile of 16 keys by 16 query rows
// straight from the page, and turned afterwards: turning scores costs less than turning keys.
#pragma once

#include "transpose.h"

#if defined(__AMX_BF16__)

#include "amx.h"

namespace cl {

constexpr int kTileKeys = 16;
constexpr int kKeysAtOnce = 64;  // four tiles of scores

// Tiles 0-3 sums, 4 keys or weights, 5 queries or values; 6 and 7 as 4 and 5 for the rest of a head size over 32.
CL_INLINE void configure_attention(int head_dim) {
  TileConfig c;
  const int rest = head_dim % 32;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = 16;
  }
  if (rest) {
    c.row_bytes[6] = uint16_t(2 * rest);
    c.rows[7] = uint8_t(rest / 2);
  } else {
    c.row_bytes[6] = 0;
    c.rows[6] = 0;
    c.row_bytes[7] = 0;
    c.rows[7] = 0;
  }
  load_config(c);
}

// Dwords of the queries of 16 rows: [units rounded up to 16][16 rows].
CL_INLINE int query_tile_dwords(int head_dim) { return (head_dim / 2 + 15) / 16 * 256; }

// Turns at most 16 query rows; those missing become zero.
CL_INLINE void prepare_queries(const char* const* q, int rows, int head_dim, int32_t* out) {
  alignas(64) int32_t block[256];
  for (int u = 0; u < head_dim / 2; u += 16) {
    const int n = head_dim / 2 - u < 16 ? head_dim / 2 - u : 16;
    std::memset(block, 0, sizeof(block));
    for (int r = 0; r < rows; ++r) std::memcpy(block + 16 * r, q[r] + 4 * u, size_t(4 * n));
    transpose_16(reinterpret_cast<const char*>(block), 64, 16, out + u * 16);
  }
}

// One step over 32 head dimensions for one tile of keys: sums (an immediate) += keys x queries.
#define CL_SCORE(sums, keys)                              \
  do {                                                    \
    _tile_zero(sums);                                     \
    for (int d = 0; d < full; d += 32) {                  \
      _tile_loadd(5, queries + d / 2 * 16, 64);           \
      _tile_loadd(4, (keys) + 2 * d, row_bytes);          \
      _tile_dpbf16ps(sums, 4, 5);                         \
    }                                                     \
    if (full < head_dim) {                                \
      _tile_loadd(7, queries + full / 2 * 16, 64);        \
      _tile_loadd(6, (keys) + 2 * full, row_bytes);       \
      _tile_dpbf16ps(sums, 6, 7);                         \
    }                                                     \
    _tile_stored(sums, turned + sums * 256, 64);          \
  } while (0)

// scores[r][0..64) of at most 16 rows against four tiles of keys, `keys[i]` the first row of each.
CL_INLINE void score_tiles(const int32_t* queries, int rows, const char* const* keys, int num_tiles, int head_dim,
                           float* scores, int64_t score_stride) {
  alignas(64) float turned[4 * 256];
  finish_stores();
  const int64_t row_bytes = int64_t(head_dim) * 2;
  const int full = head_dim / 32 * 32;
  CL_SCORE(0, keys[0]);
  if (num_tiles > 1) CL_SCORE(1, keys[1]);
  if (num_tiles > 2) CL_SCORE(2, keys[2]);
  if (num_tiles > 3) CL_SCORE(3, keys[3]);
  for (int i = 0; i < num_tiles; ++i) turn_scores(turned + i * 256, rows, scores + i * 16, score_stride);
}
#undef CL_SCORE

// ---- weights [16][keys] bf16 against values [keys / 2][dims] dwords, in three steps ----

CL_INLINE void begin_weighing() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Tiles 0 .. num_tiles - 1, 2 or 4 of 16 dims each, += one block of 32 keys. `value_stride` in dwords.
CL_INLINE void weigh_block(const char* weights, int64_t weight_bytes, const int32_t* values, int64_t value_stride,
                           int num_tiles) {
  finish_stores();
  _tile_loadd(4, weights, weight_bytes);
  _tile_loadd(5, values, value_stride * 4);
  _tile_dpbf16ps(0, 4, 5);
  _tile_loadd(5, values + 16, value_stride * 4);
  _tile_dpbf16ps(1, 4, 5);
  if (num_tiles == 2) return;
  _tile_loadd(5, values + 32, value_stride * 4);
  _tile_dpbf16ps(2, 4, 5);
  _tile_loadd(5, values + 48, value_stride * 4);
  _tile_dpbf16ps(3, 4, 5);
}

// sums[r][0..16 * num_tiles) of 16 rows. `sum_stride` in dwords.
CL_INLINE void end_weighing(int num_tiles, float* sums, int64_t sum_stride) {
  _tile_stored(0, sums, sum_stride * 4);
  _tile_stored(1, sums + 16, sum_stride * 4);
  if (num_tiles == 2) return;
  _tile_stored(2, sums + 32, sum_stride * 4);
  _tile_stored(3, sums + 48, sum_stride * 4);
}

}  // namespace cl

#endif
