// Products of a pair of panels on AMX tiles: all rows against a part of the inputs, then the next part, so that what
// rows share stays in the first-level cache. GGUF's codes are unpacked once for all rows. A block of rows is finished
// right after its last part: its sums are at hand, and lines that it writes come while the next block is multiplied.
#pragma once

#include "outputs.h"
#include "panels.h"

#if CL_HAS_TILES

#include "gemm_amx.h"
#include "gemm_amx_bytes.h"

namespace cl {

constexpr int kPartInputs = 576;  // of bytes: a part of both panels and of 16 rows lies in a cache of 48 KiB
constexpr int kPartSteps = 9;     // of bf16, of 32 inputs, with 32 rows
constexpr int kStepBytes = 1024;
constexpr int64_t kLeastAsking = 4;

class PanelTiles {
 public:
  // sums: [rows][kSumStride].
  PanelTiles(const Panels& panels, const Finish& finish, int64_t begin, int64_t end, float* sums)
      : p_(panels), finish_(finish), begin_(begin), end_(end), sums_(sums) {}

  // Rows that tiles take, from the first on; vectors take the rest. Whole blocks of 8 where weights are quantised, and
  // unpacking GGUF's codes pays from two blocks on.
  static int64_t num_rows(int kind, int64_t rows) {
    if (kind == kWeightFloat) return 0;
    if (kind == kWeightBf16) return rows;
    return rows < (is_grouped(kind) ? 16 : 8) ? 0 : rows / 8 * 8;
  }

  void run() {
    switch (p_.linear.kind) {
      case kWeightBf16: multiply_numbers(); break;
      case kWeightInt8: multiply_bytes(); break;
      case kWeightGroup8: multiply_groups<kWeightGroup8>(); break;
      case kWeightGroup4: multiply_groups<kWeightGroup4>(); break;
      default: multiply_groups<kWeightGroup41>();
    }
    _tile_release();
  }

 private:
  // f(first, how many, whether they are the last)
  template <class F>
  static CL_INLINE void each_part(int count, int part, F f) {
    for (int k = 0; k < count; k += part) f(k, count - k < part ? count - k : part, k + part >= count);
  }

  void multiply_numbers() {
    const int steps = num_units(p_.linear) / 16;
    const int parts = end_ - begin_ <= kAmxRows ? 1 : (steps + kPartSteps - 1) / kPartSteps;
    each_part(steps, (steps + parts - 1) / parts, [&](int k, int count, bool is_last) CL_LAMBDA_INLINE {
      const int64_t at = int64_t(k) * kStepBytes, next = is_last ? 0 : at + int64_t(count) * kStepBytes;
      for (int64_t row = begin_; row < end_; row += kAmxRows) {
        const int rows = int(end_ - row < kAmxRows ? end_ - row : kAmxRows);
        if (rows != configured_) configure_tiles(configured_ = rows);
        multiply_tiles(rows, p_.input(row) + 64 * k, p_.in.row_bytes, p_.panel(0) + at, p_.panel(p_.count - 1) + at,
                       count, k > 0, wanted(row, count, is_last ? 2 : 0, next), sums(row, 0));
        if (is_last) finish_.run(row, rows, sums(row, 0));
      }
    });
  }

  // Where there are blocks enough to hide it, they share in asking for what is multiplied next: the first half of them
  // for one panel, the others for the other; panels `first` and the one after, at `offset`. Few are slower for it.
  Wanted wanted(int64_t row, int steps, int first, int64_t offset) const {
    const int64_t blocks = (end_ - begin_ + kAmxRows - 1) / kAmxRows, block = (row - begin_) / kAmxRows;
    if (blocks < kLeastAsking) return {row == begin_, nullptr, 0};
    const int64_t half = blocks / 2, of = block < half ? half : blocks - half, in = block < half ? block : block - half;
    const int lines = int((kStepBytes / 64 + of - 1) / of);
    return {false, p_.panel(first + (block >= half)) + offset + in * lines * steps * 64, lines};
  }

  // Few rows wait for memory: they take a panel after the other, as they lie there.
  void multiply_bytes() {
    if (end_ - begin_ > kAmxRows) return multiply_bytes_of(0, p_.count);
    for (int i = 0; i < p_.count; ++i) multiply_bytes_of(i, i + 1);
  }

  void multiply_bytes_of(int from, int to) {
    constexpr int kPart = kPartInputs / kByteGroupInputs;
    each_part(input_groups(p_.linear), kPart, [&](int g, int count, bool is_last) CL_LAMBDA_INLINE {
      const int64_t at = int64_t(g) * tile_bytes<kWeightInt8>();
      const char* codes[2] = {p_.panel(0) + at, p_.panel(p_.count - 1) + at};
      multiply_part<kWeightInt8>(from, to, g, count, is_last && to == p_.count, codes, codes);
    });
  }

  template <int Kind>
  void multiply_groups() {
    constexpr int kPart = kPartInputs / kGroupInputs;
    alignas(64) char unpacked[2][kPart * kUnpackedBytes];
    const bool is_waiting = !has_shares();
    each_part(input_groups(p_.linear), kPart, [&](int g, int count, bool is_last) CL_LAMBDA_INLINE {
      const int64_t at = int64_t(g) * group_bytes(Kind);
      const char* weights[2] = {p_.panel(0) + at, p_.panel(p_.count - 1) + at};
      for (int i = 0; i < p_.count; ++i) {
        for (int k = 0; k < count; ++k) {
          if (is_waiting) ask_ahead(weights[i] + k * group_bytes(Kind), group_bytes(Kind));
          unpack_codes<Kind>(weights[i] + k * group_bytes(Kind), unpacked[i] + k * kUnpackedBytes);
        }
      }
      const char* codes[2] = {unpacked[0], unpacked[1]};
      multiply_part<Kind>(0, p_.count, g, count, is_last, weights, codes);
    });
  }

  // All rows against `count` groups of panels [from, to), from group g on; the last ones of the pair finish them.
  template <int Kind>
  CL_INLINE void multiply_part(int from, int to, int g, int count, bool is_last, const char* const* weights,
                               const char* const* codes) {
    const int groups = input_groups(p_.linear);
    const int64_t part_bytes = int64_t(count) * group_bytes(Kind);
    if (Kind == kWeightInt8 && num_blocks() == 1) {
      for (int i = from; i < to; ++i) ask_ahead(codes[i], count * tile_bytes<Kind>());
    }
    for (int64_t row = begin_; row < end_; row += 16) {
      const int rows = end_ - row < 16 ? 8 : 16;
      if (rows != configured_) configure_byte_tiles<Kind>(configured_ = rows);
      const int64_t place = group_place(row, groups) + int64_t(g) * kScaleRows;
      for (int i = from; i < to; ++i) {
        if (is_grouped(Kind)) ask_share(is_last ? p_.panel(i + 2) : weights[i] + part_bytes, part_bytes, row);
        const auto multiply = [&](auto n) CL_LAMBDA_INLINE {
          multiply_tile_groups<Kind, decltype(n)::value>(
              p_.input(row) + g * tile_inputs<Kind>(), p_.in.row_bytes, p_.in.scales + place,
              static_cast<const float*>(p_.in.sums) + place, weights[i], codes[i], count, g > 0, sums(row, i),
              kSumStride);
        };
        rows == 16 ? multiply(std::integral_constant<int, 16>()) : multiply(std::integral_constant<int, 8>());
      }
      if (is_last) finish_.run(row, rows, sums(row, 0));
    }
  }

  // Whether blocks are enough to share in asking for what is multiplied next. Fewer wait for memory, and ask far ahead.
  bool has_shares() const { return num_blocks() >= 2 * kLeastAsking; }

  // This block's share of asking for the `bytes` that are multiplied next. Bytes of kWeightInt8 come as fast without.
  void ask_share(const char* next, int64_t bytes, int64_t row) const {
    const int64_t blocks = num_blocks(), block = (row - begin_) / 16, lines = bytes / 64;
    if (!has_shares()) return;
    for (int64_t i = lines * block / blocks; i < lines * (block + 1) / blocks; ++i) {
      _mm_prefetch(next + i * 64, _MM_HINT_T1);
    }
  }

  int64_t num_blocks() const { return (end_ - begin_ + 15) / 16; }
  float* sums(int64_t row, int panel) const { return sums_ + (row - begin_) * kSumStride + panel * kPanel; }

  const Panels& p_;
  const Finish& finish_;
  const int64_t begin_, end_;
  float* sums_;
  int configured_ = 0;
};

}  // namespace cl

#endif
