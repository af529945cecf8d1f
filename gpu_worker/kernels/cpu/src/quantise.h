// Inputs to signed bytes: x = scale * code, codes in [-127, 127], nearest even. The scale is that of the largest
// magnitude in each group of 64 inputs (kWeightInt8) or 32 (GGUF's kinds). One scale a row is not enough: a few inputs
// are far larger than the rest. SmolLM2-135M, 1000 tokens of English, weights in 8 bits by output; KL from float32 and
// perplexity (21.79): a scale a row 0.044 and 23.19, a group of 64 0.011 and 21.93, of 32 0.008 and 21.88.
#pragma once

#include "linear.h"
#include "rows.h"

namespace cl {

constexpr int32_t kInfinityBits = 0x7f800000;
constexpr float kLeastMagnitude = 1e-35f;  // a group below counts as zeros: the inverse of its scale is no float

// The first n of W bytes.
CL_INLINE void put_bytes(int8_t* to, VI codes, int n) {
  if (n >= W) return store_bytes(to, codes);
  int8_t full[W];
  store_bytes(full, codes);
  std::memcpy(to, full, size_t(n));
}

// Codes of n numbers (a multiple of W, or the row's rest), their scale and sum. The scale is NaN where a number is not
// finite: bytes cannot say it.
template <class T>
CL_INLINE void quantise_run(const T* x, int n, int8_t* codes, float* scale, int32_t* sum) {
  VI high = zero_i();  // magnitudes in order: their bits, as whole numbers, are; what is not finite comes last
  for (int i = 0; i < n; i += W) high = max_i(high, as_i(abs(load_part(x + i, n - i))));
  const int32_t bits = reduce_max_i(high);
  float largest;
  std::memcpy(&largest, &bits, 4);
  const bool is_finite = bits < kInfinityBits, is_zero = largest < kLeastMagnitude;
  *scale = !is_finite ? NAN : is_zero ? 0.0f : largest / 127.0f;
  const VF inverse = set1(is_finite && !is_zero ? 127.0f / largest : 0.0f);
  VI total = zero_i();
  for (int i = 0; i < n; i += W) {
    const VI code = to_int(mul(load_part(x + i, n - i), inverse));
    total = add_i(total, code);
    put_bytes(codes + i, code, n - i);
  }
  *sum = is_finite ? reduce_add_i(total) : 0;
}

// Row `row` for weights of `kind`. scales and sums: of all rows, as Inputs has them, with room for whole blocks of
// kScaleRows. Pads codes with zeros.
template <class T>
CL_INLINE void quantise_row(int kind, const T* x, int n, int64_t row, int8_t* codes, float* scales, void* sums) {
  const int step = is_grouped(kind) ? kGroupInputs : kByteGroupInputs;
  const int64_t first = group_place(row, input_groups(kind, n));
  for (int g = 0; g * step < n; ++g) {
    const int64_t at = first + int64_t(g) * kScaleRows;
    int32_t sum;
    quantise_run(x + g * step, n - g * step < step ? n - g * step : step, codes + g * step, scales + at, &sum);
    if (kind == kWeightGroup41) {
      static_cast<float*>(sums)[at] = scales[at] * float(sum);
    } else {
      static_cast<int32_t*>(sums)[at] = sum;
    }
  }
  std::memset(codes + n, 0, size_t(quantised_row_bytes(n) - n));
}

}  // namespace cl
