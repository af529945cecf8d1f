// Two neighbouring panels of a layer, and the rows that they are multiplied with.
#pragma once

#include "linear.h"

namespace cl {

constexpr int kSumStride = 2 * kPanel;  // of the sums of both panels, a row after the other

struct Panels {
  Panels(const Linear& linear, const Inputs& in, int pair) : linear(linear), in(in), first(2 * pair) {
    count = num_panels(linear) - first < 2 ? 1 : 2;
    weights = static_cast<const char*>(linear.panels) + first * panel_bytes(linear);
  }

  const char* panel(int p) const { return weights + p * panel_bytes(linear); }
  const char* input(int64_t row) const { return static_cast<const char*>(in.rows) + row * in.row_bytes; }

  const Linear& linear;
  const Inputs& in;
  int first, count;
  const char* weights;
};

}  // namespace cl
