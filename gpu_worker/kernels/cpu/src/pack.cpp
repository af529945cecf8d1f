// Weights from their rows to panels, and rows back out of panels for the embedding.
#include "pack.h"

#include <cmath>

#include "pool.h"
#include "rows.h"

namespace cl {
namespace {

constexpr int kBlockBytes[] = {0, 0, 0, 34, 18, 20};  // of GGUF's Q8_0, Q4_0, Q4_1

// bf16 and float: a panel's units from rows [first output ...).
template <class T>
void pack_numbers(const Linear& l, int panel, const T* rows, char* out) {
  T* to = reinterpret_cast<T*>(out);
  const int per_unit = 4 / int(sizeof(T));
  const int width = panel_width(l, panel), first = panel_output(l, panel);
  std::memset(out, 0, size_t(panel_bytes(l)));
  for (int o = 0; o < width; ++o) {
    const T* row = rows + int64_t(first + o) * l.num_inputs;
    for (int i = 0; i < l.num_inputs; ++i) to[(i / per_unit * kPanel + o) * per_unit + i % per_unit] = row[i];
  }
}

// int8: symmetric, the scale that of the output's largest weight.
template <class T>
void pack_int8(const Linear& l, int panel, const T* rows, char* out, float* scales) {
  auto* to = reinterpret_cast<uint8_t*>(out);
  const int width = panel_width(l, panel), first = panel_output(l, panel);
  std::memset(out, 0, size_t(panel_bytes(l)));
  for (int o = 0; o < kPanel; ++o) {
    scales[panel * kPanel + o] = 0.0f;
    if (o >= width) continue;
    const T* row = rows + int64_t(first + o) * l.num_inputs;
    float largest = 0.0f;
    for (int i = 0; i < l.num_inputs; ++i) largest = std::fmax(largest, std::fabs(to_float(row[i])));
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    scales[panel * kPanel + o] = largest / 127.0f;
    for (int i = 0; i < l.num_inputs; ++i) {
      to[(i / 4 * kPanel + o) * 4 + i % 4] = uint8_t(kByteZero + int(std::nearbyint(to_float(row[i]) * inverse)));
    }
  }
}

// GGUF blocks of 32 inputs: f16 scale (, f16 minimum), codes. Nothing is rounded.
void pack_groups(const Linear& l, int panel, const uint8_t* rows, char* out) {
  const int width = panel_width(l, panel), first = panel_output(l, panel), groups = num_groups(l.num_inputs);
  const int block = kBlockBytes[l.kind], codes = l.kind == kWeightGroup8 ? 512 : 256;
  std::memset(out, 0, size_t(panel_bytes(l)));
  for (int o = 0; o < width; ++o) {
    for (int g = 0; g < groups; ++g) {
      const uint8_t* in = rows + (int64_t(first + o) * groups + g) * block;
      auto* to = reinterpret_cast<uint8_t*>(out) + int64_t(g) * group_bytes(l.kind);
      std::memcpy(to + codes + 2 * o, in, 2);
      if (l.kind == kWeightGroup41) std::memcpy(to + codes + 32 + 2 * o, in + 2, 2);
      if (l.kind == kWeightGroup8) {
        for (int i = 0; i < 32; ++i) to[(i / 4 * kPanel + o) * 4 + i % 4] = uint8_t(int8_t(in[2 + i]) + 128);
      } else {
        // GGUF: byte i holds inputs i (low) and i + 16 (high); here too, as units u and u + 4.
        const uint8_t* nibbles = in + block - 16;
        for (int i = 0; i < 16; ++i) to[(i / 4 * kPanel + o) * 4 + i % 4] = nibbles[i];
      }
    }
  }
}

float half_to_float(const uint8_t* p) {
  uint16_t h;
  std::memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}

}  // namespace

void pack_panel(const Linear& l, int panel, const void* rows, DType dtype, char* out, float* scales) {
  if (is_grouped(l.kind)) return pack_groups(l, panel, static_cast<const uint8_t*>(rows), out);
  if (l.kind == kWeightInt8) {
    if (dtype == kBFloat16) return pack_int8(l, panel, static_cast<const bf16*>(rows), out, scales);
    return pack_int8(l, panel, static_cast<const float*>(rows), out, scales);
  }
  if (l.kind == kWeightBf16) return pack_numbers(l, panel, static_cast<const bf16*>(rows), out);
  return pack_numbers(l, panel, static_cast<const float*>(rows), out);
}

void unpack_row(const Linear& l, int output, float* out) {
  const int panel = output / kPanel, o = output % kPanel, n = l.num_inputs;
  const char* from = static_cast<const char*>(l.panels) + panel * panel_bytes(l);
  const auto at = [o](int i, int per_unit) { return (i / per_unit * kPanel + o) * per_unit + i % per_unit; };
  if (l.kind == kWeightBf16) {
    for (int i = 0; i < n; ++i) out[i] = to_float(reinterpret_cast<const bf16*>(from)[at(i, 2)]);
  } else if (l.kind == kWeightFloat) {
    for (int i = 0; i < n; ++i) out[i] = reinterpret_cast<const float*>(from)[at(i, 1)];
  } else if (l.kind == kWeightInt8) {
    const float scale = l.scales[output];
    for (int i = 0; i < n; ++i) {
      const char code = from[at(i, 4)];
      out[i] = float(kByteZero ? int(uint8_t(code)) - kByteZero : int(int8_t(code))) * scale;
    }
  } else {
    const int codes = l.kind == kWeightGroup8 ? 512 : 256;
    const int zero = l.kind == kWeightGroup8 ? 128 : l.kind == kWeightGroup4 ? 8 : 0;
    for (int g = 0; g < num_groups(n); ++g) {
      const auto* group = reinterpret_cast<const uint8_t*>(from) + int64_t(g) * group_bytes(l.kind);
      const float scale = half_to_float(group + codes + 2 * o);
      const float minimum = l.kind == kWeightGroup41 ? half_to_float(group + codes + 32 + 2 * o) : 0.0f;
      for (int i = 0; i < kGroupInputs; ++i) {
        const int code = l.kind == kWeightGroup8 ? group[at(i, 4)] : group[at(i % 16, 4)] >> (i / 16 * 4) & 15;
        out[g * kGroupInputs + i] = float(code - zero) * scale + minimum;
      }
    }
  }
}

}  // namespace cl

// rows: [num_outputs, num_inputs] in `dtype`, or GGUF blocks row after row. panels: chairlift_panel_bytes of them.
CL_EXPORT void chairlift_pack(void* pool, const cl::Linear* linear, const void* rows, int32_t dtype, void* panels,
                              float* scales) {
  auto body = [&](int64_t panel, int) {
    char* out = static_cast<char*>(panels) + panel * cl::panel_bytes(*linear);
    cl::pack_panel(*linear, int(panel), rows, cl::DType(dtype), out, scales);
  };
  static_cast<cl::Pool*>(pool)->each(cl::num_panels(*linear), body);
}

// out: [num_ids, num_inputs] in `dtype`, row i the weights of output ids[i].
CL_EXPORT void chairlift_gather_rows(void* pool, const cl::Linear* linear, const int64_t* ids, int64_t num_ids,
                                     int32_t dtype, void* out) {
  const int n = linear->num_inputs;
  auto* p = static_cast<cl::Pool*>(pool);
  auto body = [&](int64_t i, int) {
    if (dtype == cl::kFloat32) return cl::unpack_row(*linear, int(ids[i]), static_cast<float*>(out) + i * n);
    float row[cl::kMaxInputs];
    cl::unpack_row(*linear, int(ids[i]), row);
    cl::convert_row(row, n, static_cast<cl::bf16*>(out) + i * n);
  };
  p->each(num_ids, body);
}
