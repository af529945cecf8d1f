// Products of a block of rows with panels of packed weights, sums in registers. Accumulators leave as raw dwords.
#pragma once

#include "linear.h"

namespace cl {

constexpr int kPanelVectors = kPanel / W;

struct Bf16Product {
  using Sum = VF;
  static CL_INLINE Sum none() { return zero(); }
  static CL_INLINE Sum mac(Sum s, VI x, VI w) { return mac_bf16(s, x, w); }
  static CL_INLINE void put(int32_t* p, Sum s) { store_i(p, as_i(s)); }
};
struct FloatProduct {
  using Sum = VF;
  static CL_INLINE Sum none() { return zero(); }
  static CL_INLINE Sum mac(Sum s, VI x, VI w) { return fma(as_f(x), as_f(w), s); }
  static CL_INLINE void put(int32_t* p, Sum s) { store_i(p, as_i(s)); }
};
// Bytes of a panel, of which there are two at a time: half of ask_ahead's own distance. Measured with bf16 on vectors
// of a Xeon, two threads, against no asking: 1 row 8.2 ms instead of 9.2, 8 rows 13.6 instead of 22.4.
constexpr int kRowsAhead = 4096;

// tile[r][panel * 16 ..] for R rows and P panels; `panel_step` bytes from one panel to the next.
template <class Product, int R, int P>
CL_INLINE void multiply_block(const char* x, int64_t row_bytes, const char* panels, int64_t panel_step, int units,
                              int32_t* tile) {
  constexpr int V = P * kPanelVectors;
  typename Product::Sum sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Product::none();
  for (int u = 0; u < units; ++u) {
    for (int p = 0; p < P; ++p) ask_ahead(panels + p * panel_step + int64_t(u) * 64, 64, kRowsAhead);
    VI w[V];
    for (int v = 0; v < V; ++v) {
      w[v] = load_i(panels + v / kPanelVectors * panel_step + int64_t(u) * 64 + v % kPanelVectors * (4 * W));
    }
    for (int r = 0; r < R; ++r) {
      const VI a = broadcast_i(x + r * row_bytes + 4 * u);
      for (int v = 0; v < V; ++v) sum[r][v] = Product::mac(sum[r][v], a, w[v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) Product::put(tile + r * 2 * kPanel + v * W, sum[r][v]);
}

#if defined(__AVX512F__)
constexpr int kGemmRows = 12;  // 24 accumulators, two weights and a broadcast in 32 registers
#else
constexpr int kGemmRows = 3;  // times four half panels: 12 accumulators in 16 registers
#endif

// Rows that multiply_block takes at once, of `left` that remain.
CL_INLINE int block_rows(int left) {
  if (left >= kGemmRows) return kGemmRows;
  return left >= 8 ? 8 : left >= 6 ? 6 : left;
}

template <class Product, int P>
CL_INLINE void multiply_rows(int rows, const char* x, int64_t row_bytes, const char* panels, int64_t panel_step,
                             int units, int32_t* tile) {
  switch (rows) {
    case 1: return multiply_block<Product, 1, P>(x, row_bytes, panels, panel_step, units, tile);
    case 2: return multiply_block<Product, 2, P>(x, row_bytes, panels, panel_step, units, tile);
    case 3: return multiply_block<Product, 3, P>(x, row_bytes, panels, panel_step, units, tile);
#if defined(__AVX512F__)
    case 4: return multiply_block<Product, 4, P>(x, row_bytes, panels, panel_step, units, tile);
    case 5: return multiply_block<Product, 5, P>(x, row_bytes, panels, panel_step, units, tile);
    case 6: return multiply_block<Product, 6, P>(x, row_bytes, panels, panel_step, units, tile);
    case 8: return multiply_block<Product, 8, P>(x, row_bytes, panels, panel_step, units, tile);
    default: return multiply_block<Product, 12, P>(x, row_bytes, panels, panel_step, units, tile);
#endif
  }
}

}  // namespace cl
