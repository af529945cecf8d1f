// Products of one row of bf16 on vectors, with the bits that AMX gives: a row alone waits for memory, and vectors keep
// more lines on their way than tile loads do. All linear layers from memory, two threads of a Xeon: 8.8 ms, not 9.7.
#pragma once

#if defined(__AMX_BF16__)

#include "gemm_rows.h"

namespace cl {

// Denormals are taken and given as zero while it lives, as tile instructions do.
class FlushedDenormals {
 public:
  FlushedDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  ~FlushedDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  const unsigned before_;
};

// Sums of a row with `count` panels that lie side by side, `steps` of 32 inputs. Each step sums the products of even
// and of odd inputs apart, by fused multiply-adds, then both, then what came before: as TDPBF16PS does.
inline void multiply_row_as_tiles(const char* x, const char* panels, int count, int steps, float* sums) {
  const FlushedDenormals flushed;
  const VI high = set1_i(int32_t(0xffff0000u));
  for (int p = 0; p < count; ++p) {
    VF total = zero();
    for (int k = 0; k < steps; ++k) {
      VF even = zero(), odd = zero();
#pragma GCC unroll 16
      for (int u = 0; u < 16; ++u, panels += 64) {
        ask_ahead(panels, 64);
        const VI a = broadcast_i(x + 64 * k + 4 * u), w = load_i(panels);
        even = fma(as_f(shift_left(a, 16)), as_f(shift_left(w, 16)), even);
        odd = fma(as_f(and_i(a, high)), as_f(and_i(w, high)), odd);
      }
      total = add(total, add(even, odd));
    }
    store(sums + p * kPanel, total);
  }
}

}  // namespace cl

#endif
