// Inputs to signed bytes: x = scale * code, codes in [-127, 127], nearest even. The scale is that of the largest
// magnitude in each group of 64 inputs (kWeightInt8) or 32 (GGUF's kinds). One scale a row is not enough: a few inputs
// are far larger than the rest. SmolLM2-135M, 1000 tokens of English, weights in 8 bits by output; KL from float32 and
// perplexity (21.79): a scale a row 0.044 and 23.19, a group of 64 0.011 and 21.93, of 32 0.008 and 21.88.
#pragma once

#include "linear.h"
#include "rows.h"

namespace cl {

// Codes of n numbers (a multiple of W, or the row's rest), their scale and sum.
template <class T>
CL_INLINE void quantise_run(const T* x, int n, int8_t* codes, float* scale, int32_t* sum) {
  VF high = zero(), poison = zero();
  for (int i = 0; i < n; i += W) {
    const VF v = load_part(x + i, n - i);
    high = vmax(high, abs(v));
    poison = fma(v, zero(), poison);  // NaN when any number is not finite: bytes cannot say it, the scale can
  }
  const float largest = reduce_max(high);
  *scale = largest / 127.0f + reduce_add(poison);
  const VF inverse = set1(largest > 0.0f ? 127.0f / largest : 0.0f);
  int32_t total = 0;
  for (int i = 0; i < n; i += W) {
    int32_t code[W];
    store_i(code, to_int(mul(load_part(x + i, n - i), inverse)));
    for (int k = 0; k < W && i + k < n; ++k) {
      codes[i + k] = int8_t(code[k]);
      total += code[k];
    }
  }
  *sum = total;
}

// One row for weights of `kind`. scales and sums: input_groups(kind, n) of them. Pads codes with zeros.
template <class T>
CL_INLINE void quantise_row(int kind, const T* x, int n, int8_t* codes, float* scales, int32_t* sums) {
  const int step = is_grouped(kind) ? kGroupInputs : kByteGroupInputs;
  for (int g = 0; g * step < n; ++g) {
    quantise_run(x + g * step, n - g * step < step ? n - g * step : step, codes + g * step, scales + g, sums + g);
  }
  std::memset(codes + n, 0, size_t(quantised_row_bytes(n) - n));
}

}  // namespace cl
