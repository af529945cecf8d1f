// The two number formats that products are formed in, as one shape: dwords ("units") along the contracted dimension.
// A bf16 unit holds two numbers, a float unit one; `mac` adds a unit's products to a float lane in a fixed order.
#pragma once

#include "simd.h"

namespace cl {

struct Bf16Units {
  using Item = bf16;
  static constexpr int kItems = 2;  // in a unit
  static CL_INLINE VF mac(VF acc, VI a, VI b) { return mac_bf16(acc, a, b); }
};

struct FloatUnits {
  using Item = float;
  static constexpr int kItems = 1;
  static CL_INLINE VF mac(VF acc, VI a, VI b) { return fma(as_f(a), as_f(b), acc); }
};

}  // namespace cl
