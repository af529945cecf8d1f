#include "linear.h"

#include <type_traits>

#include "gemm_amx.h"
#include "gemm_amx_bytes.h"
#include "gemm_bytes.h"
#include "gemm_groups.h"
#include "gemm_rows.h"
#include "rows.h"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define CL_HAS_TILES 1
#else
#define CL_HAS_TILES 0
#endif

namespace cl {
namespace {

#if CL_HAS_TILES
constexpr int kTileRows = kAmxRows;  // of a block
constexpr int kChunkRows = 256;  // of an item: their inputs stay in the second-level cache while panels pass
constexpr int kSumRows = kChunkRows;
#else
constexpr int kTileRows = kGemmRows;
constexpr int kChunkRows = 240;
constexpr int kSumRows = kTileRows;
#endif
constexpr int kTileStride = 2 * kPanel;
class PanelPair {
 public:
  PanelPair(const Linear& linear, const Inputs& in, const Outputs& out, int pair)
      : linear_(linear), in_(in), out_(out), first_(2 * pair) {
    panels_ = num_panels(linear) - first_ < 2 ? 1 : 2;
    weights_ = static_cast<const char*>(linear.panels) + first_ * panel_bytes(linear);
  }

  void run(int64_t begin, int64_t end) {
#if CL_HAS_TILES
    if (linear_.kind == kWeightBf16) {
      multiply_chunk(begin, end);
      finish(begin, int(end - begin));
      _tile_release();
      return;
    }
    if (is_quantised(linear_.kind)) {
      multiply_quantised_chunk(begin, end);
      finish(begin, int(end - begin));
      return;
    }
#endif
    for (int64_t row = begin; row < end;) {
      const int rows = multiply(row, int(end - row < kTileRows ? end - row : kTileRows));
      finish(row, rows);
      row += rows;
    }
  }

 private:
  const char* input(int64_t row) const { return static_cast<const char*>(in_.rows) + row * in_.row_bytes; }

  // Products of some of the `left` next rows into the tile; how many.
  int multiply(int64_t row, int left) {
    switch (linear_.kind) {
      case kWeightBf16: return multiply_vectors<Bf16Product>(row, left);
      case kWeightFloat: return multiply_vectors<FloatProduct>(row, left);
      default: return multiply_quantised(row, left, sums_);
    }
  }

  int multiply_quantised(int64_t row, int left, float* sums) {
    switch (linear_.kind) {
      case kWeightInt8: return multiply_bytes(row, left, sums);
      case kWeightGroup8: return multiply_groups_as<kWeightGroup8>(row, left, sums);
      case kWeightGroup4: return multiply_groups_as<kWeightGroup4>(row, left, sums);
      default: return multiply_groups_as<kWeightGroup41>(row, left, sums);
    }
  }

#if CL_HAS_TILES
  // All rows against a part of the inputs, then the next part: what they share stays in the first-level cache.
  void multiply_chunk(int64_t begin, int64_t end) {
    const int steps = num_units(linear_) / 16;
    const int64_t blocks = (end - begin + kTileRows - 1) / kTileRows;
    const int parts = blocks == 1 ? 1 : (steps + kStepsAtOnce - 1) / kStepsAtOnce, part = (steps + parts - 1) / parts;
    const char* second = weights_ + (panels_ - 1) * panel_bytes(linear_);
    for (int k = 0; k < steps; k += part) {
      const int count = steps - k < part ? steps - k : part;
      for (int64_t row = begin; row < end; row += kTileRows) {
        const int rows = int(end - row < kTileRows ? end - row : kTileRows);
        if (rows != configured_) configure_tiles(configured_ = rows);
        multiply_tiles(rows, input(row) + 64 * k, in_.row_bytes, weights_ + int64_t(k) * 1024,
                       second + int64_t(k) * 1024, count, k > 0, row == begin,
                       reinterpret_cast<int32_t*>(sums_ + (row - begin) * kTileStride));
      }
    }
  }

  // Whole blocks of rows on tiles, what is left on vectors. Unpacking GGUF's codes pays from two blocks on.
  void multiply_quantised_chunk(int64_t begin, int64_t end) {
    const int64_t least = is_grouped(linear_.kind) ? 16 : 8;
    const int64_t tiled = end - begin < least ? begin : begin + (end - begin) / 8 * 8;
    if (tiled > begin) {
      for (int p = 0; p < panels_; ++p) tile_panel(begin, tiled, p);
      _tile_release();
    }
    for (int64_t row = tiled; row < end;) {
      row += multiply_quantised(row, int(end - row), sums_ + (row - begin) * kTileStride);
    }
  }

  void tile_panel(int64_t begin, int64_t end, int p) {
    const char* panel = weights_ + p * panel_bytes(linear_);
    switch (linear_.kind) {
      case kWeightInt8: return tile_groups<kWeightInt8>(begin, end, p, panel);
      case kWeightGroup8: return tile_groups<kWeightGroup8>(begin, end, p, panel);
      case kWeightGroup4: return tile_groups<kWeightGroup4>(begin, end, p, panel);
      default: return tile_groups<kWeightGroup41>(begin, end, p, panel);
    }
  }

  // All rows against a part of one panel's groups, then the next part. GGUF's codes are unpacked once for all rows.
  template <int Kind>
  void tile_groups(int64_t begin, int64_t end, int p, const char* panel) {
    alignas(64) char codes[kGroupsAtOnce * kUnpackedBytes];
    const int groups = input_groups(linear_);
    for (int g = 0; g < groups; g += kGroupsAtOnce) {
      const int count = groups - g < kGroupsAtOnce ? groups - g : kGroupsAtOnce;
      if constexpr (Kind == kWeightInt8) {
        const char* weights = panel + int64_t(g) * tile_bytes<Kind>();
        tile_rows<Kind>(begin, end, p, g, count, weights, weights);
      } else {
        const char* weights = panel + int64_t(g) * group_bytes(Kind);
        for (int i = 0; i < count; ++i) unpack_codes<Kind>(weights + i * group_bytes(Kind), codes + i * kUnpackedBytes);
        tile_rows<Kind>(begin, end, p, g, count, weights, codes);
      }
    }
  }

  // All rows against `count` groups of one panel.
  template <int Kind>
  void tile_rows(int64_t begin, int64_t end, int p, int group, int count, const char* weights, const char* codes) {
    const int groups = input_groups(linear_);
    for (int64_t row = begin; row < end;) {
      const auto multiply = [&](auto n) CL_LAMBDA_INLINE {
        const int64_t at = row * groups + group;
        multiply_tile_groups<Kind, decltype(n)::value>(
            input(row) + group * tile_inputs<Kind>(), in_.row_bytes, in_.scales + at, in_.sums + at, groups, weights,
            codes, count, group > 0, sums_ + (row - begin) * kTileStride + p * kPanel, kTileStride);
      };
      const int rows = end - row < 16 ? 8 : 16;
      if (rows != configured_) configure_byte_tiles<Kind>(configured_ = rows);
      rows == 16 ? multiply(std::integral_constant<int, 16>()) : multiply(std::integral_constant<int, 8>());
      row += rows;
    }
  }
#endif

  int multiply_bytes(int64_t row, int left, float* sums) {
    const int groups = input_groups(linear_), rows = left < kByteRows ? left : kByteRows;
    for (int p = 0; p < panels_; ++p) {
      multiply_byte_rows(rows, input(row), in_.row_bytes, in_.scales + row * groups, in_.sums + row * groups,
                         weights_ + p * panel_bytes(linear_), groups, sums + p * kPanel, kTileStride);
    }
    return rows;
  }

  template <class Product>
  int multiply_vectors(int64_t row, int left) {
    const int rows = block_rows(left);
    auto* sums = reinterpret_cast<int32_t*>(sums_);
    const int64_t step = panel_bytes(linear_);
    if (panels_ == 2) {
      multiply_rows<Product, 2>(rows, input(row), in_.row_bytes, weights_, step, num_units(linear_), sums);
    } else {
      multiply_rows<Product, 1>(rows, input(row), in_.row_bytes, weights_, step, num_units(linear_), sums);
    }
    return rows;
  }

  template <int Kind>
  int multiply_groups_as(int64_t row, int left, float* sums) {
    const int rows = left < kGroupRows ? left : kGroupRows;
    const int groups = num_groups(linear_.num_inputs);
    for (int p = 0; p < panels_; ++p) {
      multiply_group_rows<Kind>(rows, input(row), in_.row_bytes, in_.scales + row * groups, in_.sums + row * groups,
                                weights_ + p * panel_bytes(linear_), groups, sums + p * kPanel, kTileStride);
    }
    return rows;
  }

  void finish(int64_t row, int rows) {
    if (linear_.scales) scale(rows);
    if (linear_.bias) add_bias(rows);
    for (int r = 0; r < rows; ++r) put(row + r, sums_ + r * kTileStride);
  }

  void scale(int rows) {
    const float* scales = linear_.scales + first_ * kPanel;
    for (int r = 0; r < rows; ++r) {
      float* sums = sums_ + r * kTileStride;
      for (int i = 0; i < panels_ * kPanel; i += W) store(sums + i, mul(load(sums + i), load(scales + i)));
    }
  }

  void add_bias(int rows) {
    const float* bias = linear_.bias + first_ * kPanel;
    for (int r = 0; r < rows; ++r) {
      float* sums = sums_ + r * kTileStride;
      for (int i = 0; i < panels_ * kPanel; i += W) store(sums + i, add(load(sums + i), load(bias + i)));
    }
  }

  void put(int64_t row, const float* sums) {
    if (out_.dtype == kFloat32) return put_as<float>(row, sums);
    return put_as<bf16>(row, sums);
  }

  template <class T>
  void put_as(int64_t row, const float* sums) {
    T* out = static_cast<T*>(out_.rows) + row * out_.stride;
    if (out_.kind == kSiluMul) {
      const int width = panel_width(linear_, first_);
      return silu_mul_row(sums, sums + kPanel, width, out + panel_output(linear_, first_));
    }
    for (int p = 0; p < panels_; ++p) {
      T* at = out + panel_output(linear_, first_ + p);
      const int width = panel_width(linear_, first_ + p);
      for (int i = 0; i < width; i += W) {
        const VF y = load(sums + p * kPanel + i);
        store_part(at + i, out_.kind == kAdd ? add(load_part(at + i, width - i), y) : y, width - i);
      }
    }
  }

  const Linear& linear_;
  const Inputs& in_;
  const Outputs& out_;
  const int first_;  // panel
  int panels_;
  int configured_ = 0;
  const char* weights_;
  alignas(64) float sums_[kSumRows * kTileStride];
};

}  // namespace

void run_linear(Pool* pool, const Linear& linear, const Inputs& in, int64_t num_rows, const Outputs& out) {
  const int pairs = (num_panels(linear) + 1) / 2;
  const int64_t chunks = (num_rows + kChunkRows - 1) / kChunkRows;
  // Equal chunks: each passes over all weights, however few its rows are.
  const int64_t chunk = ((num_rows + chunks - 1) / chunks + kTileRows - 1) / kTileRows * kTileRows;
  auto body = [&](int64_t item, int) {
    const int64_t begin = item / pairs * chunk;
    const int64_t end = begin + chunk < num_rows ? begin + chunk : num_rows;
    if (begin < end) PanelPair(linear, in, out, int(item % pairs)).run(begin, end);
  };
  pool->each(chunks * pairs, body);
}

}  // namespace cl

CL_EXPORT int64_t chairlift_panel_bytes(const cl::Linear* linear) {
  return cl::panel_bytes(*linear) * cl::num_panels(*linear);
}
CL_EXPORT void chairlift_linear(void* pool, const cl::Linear* linear, const cl::Inputs* in, int64_t num_rows,
                                const cl::Outputs* out) {
  cl::run_linear(static_cast<cl::Pool*>(pool), *linear, *in, num_rows, *out);
}
