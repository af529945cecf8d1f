// Runs the kernels over a small grid on heap buffers of exactly the size that each is entitled to, under
// AddressSanitizer. Compiled for AVX-512 without its extensions, which no other test is,
// so products are also compared with plain loops. Exits with 0 when all is well.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "pack.h"
#include "pool.h"
#include "rotary.h"

using cl::bf16;

extern "C" {
void chairlift_rms_norm(void*, int32_t, const void*, void*, const void*, void*, int64_t, int32_t, float);
void chairlift_silu_mul(void*, int32_t, const void*, void*, int64_t, int32_t);
void chairlift_rotate_and_store(void*, int32_t, const cl::RotaryCall*, const void*, void*, int64_t);
void chairlift_quantise(void*, int32_t, int32_t, const void*, int64_t, int32_t, int8_t*, float*, void*);
void chairlift_greedy(void*, const float*, int64_t, int64_t, int64_t*);
}

namespace {

uint32_t state = 1;
float number() {  // in [-1, 1)
  state = state * 1664525u + 1013904223u;
  return float(int32_t(state)) * (1.0f / 2147483648.0f);
}
template <class T>
T as(float x);
template <>
float as<float>(float x) { return x; }
template <>
bf16 as<bf16>(float x) { return cl::to_bf16(x); }
template <class T>
std::vector<T> numbers(size_t n) {
  std::vector<T> v(n);
  for (T& x : v) x = as<T>(number());
  return v;
}
template <class T>
constexpr int32_t code() { return sizeof(T) == 2 ? cl::kBFloat16 : cl::kFloat32; }

void require(bool ok, const char* what, int a, int b) {
  if (ok) return;
  std::fprintf(stderr, "wrong: %s (%d, %d)\n", what, a, b);
  std::exit(1);
}

template <class T>
void check_attention(cl::Pool* pool, int head_dim, int block_size, int window) {
  const int heads = 6, kv_heads = 2, rows = 4;
  const std::vector<int32_t> lens{1, 37, 290, 33}, counts{1, 1, 3, 33};
  std::vector<int32_t> starts{0}, tables;
  int width = 0, pages = 0;
  for (int r = 0; r < rows; ++r) starts.push_back(starts[r] + counts[r]);
  for (int n : lens) width = std::max(width, (n + block_size - 1) / block_size);
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < width; ++i) tables.push_back(i * block_size < lens[r] ? pages++ : 0);
  const size_t page_items = size_t(pages) * kv_heads * block_size * head_dim;
  const auto q = numbers<T>(size_t(starts[rows]) * heads * head_dim);
  const auto k = numbers<T>(page_items), v = numbers<T>(page_items);
  std::vector<T> out(q.size());
  std::vector<cl::QueryTile> tiles;
  cl::make_tiles(starts.data(), lens.data(), rows, heads / kv_heads, &tiles);
  const cl::AttentionCall call{{heads, kv_heads, head_dim, block_size, 0.1f, window}, q.data(), heads * head_dim,
                               k.data(), v.data(), tables.data(), width, out.data(), heads * head_dim, &tiles};
  require(cl::attend(pool, cl::DType(code<T>()), call) == 0, "attention", head_dim, block_size);
  for (T x : out) require(std::fabs(cl::to_float(x)) <= 1.01f, "attention is no mean of values", head_dim, block_size);
}

template <class T>
void check_small(cl::Pool* pool, int n, int rows) {
  const auto x = numbers<T>(size_t(rows) * n), weight = numbers<T>(n), gate_up = numbers<T>(size_t(rows) * 2 * n);
  std::vector<T> residual(x), out(x.size());
  chairlift_rms_norm(pool, code<T>(), x.data(), residual.data(), weight.data(), out.data(), rows, n, 1e-5f);
  chairlift_silu_mul(pool, code<T>(), gate_up.data(), out.data(), rows, n);
  const int head_dim = 2 * n, heads = 3, kv_heads = 1, block_size = 16;
  const auto qkv = numbers<T>(size_t(rows) * (heads + 2 * kv_heads) * head_dim), norm = numbers<T>(head_dim);
  const auto cos_sin = numbers<float>(size_t(rows) * head_dim);
  std::vector<int64_t> blocks(rows), offsets(rows);
  for (int r = 0; r < rows; ++r) blocks[r] = r / block_size, offsets[r] = r % block_size;
  std::vector<T> k(size_t((rows + block_size - 1) / block_size) * kv_heads * block_size * head_dim), v(k);
  std::vector<T> q(size_t(rows) * heads * head_dim);
  const cl::RotaryCall call{{heads, kv_heads, head_dim, block_size, 1e-5f}, cos_sin.data(), nullptr, blocks.data(),
                            offsets.data(), norm.data(), norm.data(), k.data(), v.data()};
  chairlift_rotate_and_store(pool, code<T>(), &call, qkv.data(), q.data(), rows);
  const auto logits = numbers<float>(size_t(rows) * n);
  std::vector<int64_t> ids(rows);
  chairlift_greedy(pool, logits.data(), rows, n, ids.data());
}

// Weights packed from numbers, or from blocks of a GGUF kind made here.
template <class T>
void check_linear(cl::Pool* pool, int kind, int outputs, int inputs, bool paired, int rows) {
  cl::Linear linear{kind, outputs, inputs, paired, nullptr, nullptr, nullptr};
  const int64_t bytes = cl::panel_bytes(linear) * cl::num_panels(linear);
  void* panels = std::aligned_alloc(64, size_t(bytes + 63) / 64 * 64);
  linear.panels = panels;
  std::vector<float> scales(size_t(cl::num_panels(linear)) * cl::kPanel), bias(numbers<float>(scales.size()));
  if (kind == cl::kWeightInt8) linear.scales = scales.data();
  linear.bias = bias.data();
  std::vector<char> blocks;
  std::vector<T> weight;
  const int block = kind == cl::kWeightGroup8 ? 34 : kind == cl::kWeightGroup4 ? 18 : 20;
  if (cl::is_grouped(kind)) {
    for (int i = 0; i < outputs * inputs / 32; ++i)
      for (int b = 0; b < block; ++b) blocks.push_back(b == 1 || (kind == cl::kWeightGroup41 && b == 3) ? 0x20 : char(b * 37 + i));
  } else {
    weight = numbers<T>(size_t(outputs) * inputs);
  }
  const void* from = blocks.empty() ? (const void*)weight.data() : blocks.data();
  for (int p = 0; p < cl::num_panels(linear); ++p)
    cl::pack_panel(linear, p, from, cl::DType(code<T>()), (char*)panels + p * cl::panel_bytes(linear), scales.data());
  const auto x = numbers<T>(size_t(rows) * inputs);
  const int64_t row_bytes = cl::is_quantised(kind) ? cl::quantised_row_bytes(inputs) : cl::round_up(inputs * int(sizeof(T)), 64);
  std::vector<char> in(size_t(rows * row_bytes));
  const size_t groups = size_t(cl::round_up(rows, cl::kScaleRows)) * cl::input_groups(kind, inputs);
  std::vector<float> in_scales(groups);
  std::vector<int32_t> sums(groups);
  if (cl::is_quantised(kind)) {
    chairlift_quantise(pool, kind, code<T>(), x.data(), rows, inputs, (int8_t*)in.data(), in_scales.data(), sums.data());
  } else {
    for (int r = 0; r < rows; ++r) std::memcpy(in.data() + r * row_bytes, x.data() + size_t(r) * inputs, inputs * sizeof(T));
  }
  std::vector<float> y(size_t(rows) * outputs);
  cl::run_linear(pool, linear, {in.data(), row_bytes, in_scales.data(), sums.data()}, rows,
                 {cl::kStore, cl::kFloat32, y.data(), outputs});
  if (paired) {
    std::vector<T> activated(size_t(rows) * outputs / 2);
    cl::run_linear(pool, linear, {in.data(), row_bytes, in_scales.data(), sums.data()}, rows,
                   {cl::kSiluMul, code<T>(), activated.data(), outputs / 2});
  } else {
    std::vector<float> row(inputs);
    for (int o = 0; o < outputs; ++o) {
      cl::unpack_row(linear, o, row.data());
      for (int r = 0; r < rows; ++r) {
        double want = bias[o], size = 1e-3;
        for (int i = 0; i < inputs; ++i) {
          want += double(row[i]) * cl::to_float(x[size_t(r) * inputs + i]);
          size += std::fabs(row[i]);
        }
        require(std::fabs(y[size_t(r) * outputs + o] - want) < 0.01 * size, "product", kind, rows);
      }
    }
  }
  std::free(panels);
}

}  // namespace

int main() {
  cl::Pool* pool = cl::Pool::create(2, 0, nullptr);
  require(pool != nullptr, "pool", 2, 0);
  for (int head_dim : {64, 80, 128}) {
    for (int window : {0, 21}) {
      check_attention<bf16>(pool, head_dim, 16, window);
      check_attention<float>(pool, head_dim, 32, window);
    }
  }
  for (int n : {1, 17, 40}) {
    check_small<bf16>(pool, n, 5);
    check_small<float>(pool, n, 1);
  }
  for (int rows : {1, 7, 13, 33}) {
    check_linear<bf16>(pool, cl::kWeightBf16, 49, 70, false, rows);
    check_linear<float>(pool, cl::kWeightFloat, 49, 70, false, rows);
    check_linear<bf16>(pool, cl::kWeightInt8, 49, 70, false, rows);
    for (int kind : {cl::kWeightGroup8, cl::kWeightGroup4, cl::kWeightGroup41}) {
      check_linear<bf16>(pool, kind, 49, 96, false, rows);
      check_linear<float>(pool, kind, 76, 64, true, rows);
    }
    check_linear<bf16>(pool, cl::kWeightBf16, 76, 64, true, rows);
  }
  delete pool;
  return 0;
}
