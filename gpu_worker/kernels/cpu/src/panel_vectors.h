// Products of a pair of panels on vectors: of all kinds, but for bf16 where there are tiles.
#pragma once

#include "gemm_bytes.h"
#include "gemm_groups.h"
#include "gemm_rows.h"
#include "panels.h"

namespace cl {

constexpr int kVectorRows = kGemmRows > kGroupRows ? kGemmRows : kGroupRows;  // at once, at most

template <class Product>
CL_INLINE int multiply_panel_numbers(const Panels& p, int64_t row, int left, float* sums) {
  const int rows = block_rows(left), units = num_units(p.linear);
  const int64_t step = panel_bytes(p.linear);
  auto* to = reinterpret_cast<int32_t*>(sums);
  if (p.count == 2) {
    multiply_rows<Product, 2>(rows, p.input(row), p.in.row_bytes, p.weights, step, units, to);
  } else {
    multiply_rows<Product, 1>(rows, p.input(row), p.in.row_bytes, p.weights, step, units, to);
  }
  return rows;
}

CL_INLINE int multiply_panel_bytes(const Panels& p, int64_t row, int left, float* sums) {
  const int groups = input_groups(p.linear), rows = left < kByteRows ? left : kByteRows;
  const int64_t place = group_place(row, groups);
  for (int i = 0; i < p.count; ++i) {
    multiply_byte_rows(rows, p.input(row), p.in.row_bytes, p.in.scales + place,
                       static_cast<const int32_t*>(p.in.sums) + place, p.panel(i), groups, sums + i * kPanel,
                       kSumStride);
  }
  return rows;
}

template <int Kind>
CL_INLINE int multiply_panel_groups(const Panels& p, int64_t row, int left, float* sums) {
  const int groups = num_groups(p.linear.num_inputs), rows = left < kGroupRows ? left : kGroupRows;
  const int64_t place = group_place(row, groups);
  for (int i = 0; i < p.count; ++i) {
    multiply_group_rows<Kind>(rows, p.input(row), p.in.row_bytes, p.in.scales + place,
                              static_cast<const int32_t*>(p.in.sums) + place, p.panel(i), groups, sums + i * kPanel,
                              kSumStride);
  }
  return rows;
}

// Sums of some of the `left` next rows; how many. Of bf16, where there are no tiles.
inline int multiply_some_rows(const Panels& p, int64_t row, int left, float* sums) {
  if (is_quantised(p.linear.kind)) {
    const int block = int(kScaleRows - row % kScaleRows);  // rows whose scales lie side by side
    left = left < block ? left : block;
  }
  switch (p.linear.kind) {
#if !CL_HAS_TILES
    case kWeightBf16: return multiply_panel_numbers<Bf16Product>(p, row, left, sums);
#endif
    case kWeightInt8: return multiply_panel_bytes(p, row, left, sums);
    case kWeightGroup8: return multiply_panel_groups<kWeightGroup8>(p, row, left, sums);
    case kWeightGroup4: return multiply_panel_groups<kWeightGroup4>(p, row, left, sums);
    case kWeightGroup41: return multiply_panel_groups<kWeightGroup41>(p, row, left, sums);
    default: return multiply_panel_numbers<FloatProduct>(p, row, left, sums);
  }
}

}  // namespace cl
