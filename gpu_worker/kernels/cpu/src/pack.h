// Weights from their rows to panels, and rows back out of panels for the embedding.
#pragma once

#include "linear.h"

namespace cl {

constexpr int kMaxInputs = 65536;  // sums of 8-bit products stay exact in 32 bits

// Fills one panel. rows: [num_outputs, num_inputs] in `dtype`, or GGUF blocks for the grouped kinds. `scales`: those of
// the whole layer, of which kWeightInt8 writes the panel's.
void pack_panel(const Linear& linear, int panel, const void* rows, DType dtype, char* out, float* scales);

// The weights of one output of a layer that is not paired.
void unpack_row(const Linear& linear, int output, float* out);

}  // namespace cl
