// What becomes of a block's sums: scales and bias of their outputs, then the store, the addition to a residual or the
// gated activation. One pass, in the order of the numbers; a number's operations depend on its output only.
#pragma once

#include "panels.h"
#include "rows.h"

namespace cl {

class Finish {
 public:
  Finish(const Linear& linear, const Outputs& out, int first_panel, int panels) : out_(out), panels_(panels) {
    for (int p = 0; p < panels; ++p) {
      first_[p] = panel_output(linear, first_panel + p);
      width_[p] = panel_width(linear, first_panel + p);
    }
    const int64_t at = int64_t(first_panel) * kPanel;
    scales_ = linear.scales ? linear.scales + at : nullptr;
    bias_ = linear.bias ? linear.bias + at : nullptr;
  }

  // Rows [row, row + rows) of the step from sums [rows][kSumStride].
  void run(int64_t row, int rows, float* sums) const {
    if (scales_ || bias_) adjust(rows, sums);
    if (out_.dtype == kFloat32) return put<float>(row, rows, sums);
    put<bf16>(row, rows, sums);
  }

 private:
  void adjust(int rows, float* sums) const {
    for (int i = 0; i < panels_ * kPanel; i += W) {
      const VF bias = bias_ ? load(bias_ + i) : zero();
      const VF scale = scales_ ? load(scales_ + i) : zero();
      for (int r = 0; r < rows; ++r) {
        VF y = load(sums + r * kSumStride + i);
        if (scales_) y = mul(y, scale);
        if (bias_) y = add(y, bias);
        store(sums + r * kSumStride + i, y);
      }
    }
  }

  template <class T>
  void put(int64_t row, int rows, const float* sums) const {
    T* to = static_cast<T*>(out_.rows) + row * out_.stride;
    switch (out_.kind) {
      case kSiluMul: return activate(to + first_[0], rows, sums);
      case kAdd: return put_rows<T, true>(to, rows, sums);
      default: put_rows<T, false>(to, rows, sums);
    }
  }

  template <class T>
  void activate(T* to, int rows, const float* sums) const {
    const int width = width_[0];
    for (int r = 0; r < rows; ++r, to += out_.stride, sums += kSumStride) silu_mul_row(sums, sums + kPanel, width, to);
  }

  template <class T, bool IsAdded>
  void put_rows(T* to, int rows, const float* sums) const {
    for (int r = 0; r < rows; ++r, to += out_.stride, sums += kSumStride) {
      put_panel<T, IsAdded>(to + first_[0], width_[0], sums);
      if (panels_ == 2) put_panel<T, IsAdded>(to + first_[1], width_[1], sums + kPanel);
    }
  }

  template <class T, bool IsAdded>
  static CL_INLINE void put_panel(T* to, int width, const float* sums) {
    const auto put = [&](int n) CL_LAMBDA_INLINE {
      for (int i = 0; i < n; i += W) {
        const VF y = load(sums + i);
        store_part(to + i, IsAdded ? add(load_part(to + i, n - i), y) : y, n - i);
      }
    };
    width == kPanel ? put(kPanel) : put(width);
  }

  const Outputs& out_;
  int panels_, first_[2], width_[2];
  const float *scales_, *bias_;
};

}  // namespace cl
