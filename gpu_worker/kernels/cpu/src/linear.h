// Linear layers on packed weights: y = x W^T + b.
//
// Weights lie in panels of 16 outputs. Inside a panel, a dword ("unit") holds consecutive inputs of one output: one
// float, two bf16 or four bytes; a unit of all 16 outputs is 64 contiguous bytes, and units follow in input order:
//
//   panel p:  unit 0 [16 outputs] | unit 1 [16 outputs] | ... | padding to a multiple of 16 units, zero
//
// which is also what AMX wants its tiles to be. Every output of every row is summed in unit order by the same
// instructions whatever the number of rows: results do not depend on the batch.
#pragma once

#include <cstdint>

#include "abi.h"
#include "pool.h"
#include "simd.h"

namespace cl {

enum WeightKind : int32_t {
  kWeightBf16 = 0,
  kWeightFloat = 1,
  kWeightInt8 = 2,    // byte code less kByteZero, times a scale an output; inputs quantised by groups of 64
  kWeightGroup8 = 3,  // GGUF Q8_0: u8 code - 128, times a scale a group of 32 inputs; inputs quantised by the same groups
  kWeightGroup4 = 4,  // GGUF Q4_0: u4 code - 8, times a scale a group
  kWeightGroup41 = 5,  // GGUF Q4_1: u4 code times a scale plus a minimum a group
};

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define CL_HAS_TILES 1
#else
#define CL_HAS_TILES 0
#endif

constexpr int kPanel = 16;
constexpr int kGroupInputs = 32;      // of GGUF's blocks
constexpr int kByteGroupInputs = 64;  // of inputs to kWeightInt8: a step of 16 units
#if defined(__AMX_INT8__)
constexpr int kByteZero = 0;  // tiles multiply signed bytes
#else
constexpr int kByteZero = 128;  // vectors want one factor unsigned
#endif

struct Linear {
  int32_t kind;
  int32_t num_outputs;
  int32_t num_inputs;
  int32_t paired;      // panels alternate between the first and the second half of the outputs: gate, up, gate, up
  const void* panels;  // 64-byte aligned
  const float* scales;  // kWeightInt8: one an output, in panel order, padded; else null
  const float* bias;    // in panel order, padded; or null
};

CL_INLINE bool is_grouped(int kind) { return kind >= kWeightGroup8; }
CL_INLINE bool is_quantised(int kind) { return kind >= kWeightInt8; }
CL_INLINE int inputs_per_unit(int kind) { return kind == kWeightFloat ? 1 : kind == kWeightBf16 ? 2 : 4; }
CL_INLINE int num_units(const Linear& l) {
  const int per_unit = inputs_per_unit(l.kind);
  return round_up((l.num_inputs + per_unit - 1) / per_unit, 16);
}
// Panels of a layer; of a paired one always even.
CL_INLINE int num_panels(const Linear& l) {
  if (!l.paired) return (l.num_outputs + kPanel - 1) / kPanel;
  return (l.num_outputs / 2 + kPanel - 1) / kPanel * 2;
}
// First output of a panel, and how many outputs it has.
CL_INLINE int panel_output(const Linear& l, int panel) {
  return l.paired ? (panel & 1) * (l.num_outputs / 2) + panel / 2 * kPanel : panel * kPanel;
}
CL_INLINE int panel_width(const Linear& l, int panel) {
  const int end = l.paired && !(panel & 1) ? l.num_outputs / 2 : l.num_outputs;
  const int left = end - panel_output(l, panel);
  return left < kPanel ? left : kPanel;
}
// Bytes of one group of a panel: codes, scales (f16), and minima where there are any.
CL_INLINE int group_bytes(int kind) {
  return kind == kWeightGroup8 ? 512 + 32 : kind == kWeightGroup4 ? 256 + 32 : 256 + 64;
}
CL_INLINE int64_t panel_bytes(const Linear& l) {
  if (is_grouped(l.kind)) return int64_t(l.num_inputs / kGroupInputs) * group_bytes(l.kind);
  return int64_t(num_units(l)) * 64;
}

// Asks for weights that come `ahead` bytes after `bytes` of them, every line: of few rows, whose products are done
// before the processor's own prefetch has seen enough. Measured with all weights of a step from memory, two threads of a
// Xeon: int8 3.2 ms instead of 4.3 with 1 row and 4.0 instead of 6.8 with 4, against one line in four 2 KiB ahead.
CL_INLINE void ask_ahead(const char* weights, int bytes, int ahead = 8192) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(weights + ahead + i, _MM_HINT_T1);
}

// Rows of inputs in the form that a kind of weights takes.
struct Inputs {
  const void* rows;     // bf16, float or s8, `num_units` dwords each at least, padding zero
  int64_t row_bytes;    // from one row to the next
  const float* scales;  // s8: of each group, see group_place
  const void* sums;     // s8: of each group's numbers, as scales: int32; for kWeightGroup41 float, times the scale
};

enum OutputKind : int32_t {
  kStore = 0,    // out = y
  kAdd = 1,      // out += y, float
  kSiluMul = 2,  // paired: out = silu(first half) * second half
};

struct Outputs {
  int32_t kind;
  int32_t dtype;
  void* rows;
  int64_t stride;  // items from one row to the next
};

void run_linear(Pool* pool, const Linear& linear, const Inputs& in, int64_t num_rows, const Outputs& out);

// Bytes that quantise_row writes for one row of `n` inputs: numbers, padded.
CL_INLINE int64_t quantised_row_bytes(int n) { return round_up(n, 64); }
CL_INLINE int num_groups(int n) { return n / kGroupInputs; }
// Groups that a row of n inputs is quantised in for weights of `kind`.
CL_INLINE int input_groups(int kind, int n) {
  return is_grouped(kind) ? num_groups(n) : (n + kByteGroupInputs - 1) / kByteGroupInputs;
}
CL_INLINE int input_groups(const Linear& l) { return input_groups(l.kind, l.num_inputs); }

constexpr int kScaleRows = 16;  // whose scales of one group lie side by side, as products of a tile want them
// Where the scale of a row's first of `groups` groups lies; those after it are kScaleRows apart.
CL_INLINE int64_t group_place(int64_t row, int groups) {
  return row / kScaleRows * kScaleRows * groups + row % kScaleRows;
}

}  // namespace cl
