#include "decoder.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

#include "pack.h"
#include "quantise.h"

namespace cl {
namespace {

constexpr int64_t kRowGroup = 4;  // rows of a small operation handed out together
constexpr size_t kHugePage = size_t(2) << 20;

// Activations of one width between operations: numbers, or bytes with scales where the next weights are quantised.
struct Activations {
  char* numbers;      // [max rows][row_bytes] in the decoder's dtype, padding zero
  int64_t row_bytes;
  int8_t* codes;
  int64_t code_bytes;
  float* scales;
  void* sums;
};

class Decoder {
 public:
  static Decoder* create(const DecoderShape& shape, const DecoderWeights& weights) {
    auto* decoder = new (std::nothrow) Decoder(shape, weights);
    if (decoder && decoder->allocate()) return decoder;
    delete decoder;
    return nullptr;
  }
  ~Decoder() { std::free(memory_); }

  int32_t forward(Pool* pool, const Step& step) {
    return shape_.dtype == kBFloat16 ? forward_as<bf16>(pool, step) : forward_as<float>(pool, step);
  }

  void logits(Pool* pool, const float* hidden, int64_t num_rows, float* out) {
    const int64_t vocab = weights_.head.num_outputs;
    for (int64_t row = 0; row < num_rows; row += shape_.max_rows) {
      const int64_t rows = std::min<int64_t>(shape_.max_rows, num_rows - row);
      const float* from = hidden + row * shape_.hidden_size;
      if (shape_.dtype == kBFloat16) {
        norm<bf16>(pool, from, weights_.final_norm, weights_.head, rows);
      } else {
        norm<float>(pool, from, weights_.final_norm, weights_.head, rows);
      }
      multiply(pool, weights_.head, hidden_in_, rows, {kStore, kFloat32, out + row * vocab, vocab});
    }
  }

 private:
  Decoder(const DecoderShape& shape, const DecoderWeights& weights) : shape_(shape), weights_(weights) {}

  bool allocate() {
    const int64_t rows = round_up(std::max(shape_.max_tokens, shape_.max_rows), kScaleRows);
    const int64_t q_size = int64_t(shape_.num_heads) * shape_.head_dim;
    char* base = nullptr;
    for (int pass = 0; pass < 2; ++pass) {
      int64_t used = 0;
      const auto take = [&](int64_t bytes) {
        char* at = base + used;
        used += (bytes + 63) & ~int64_t(63);
        return at;
      };
      lay_out(take, rows, shape_.hidden_size, &hidden_in_);
      lay_out(take, rows, int(q_size), &attended_);
      lay_out(take, rows, shape_.intermediate_size, &activated_);
      qkv_width_ = q_size + 2 * int64_t(shape_.num_kv_heads) * shape_.head_dim;
      qkv_ = reinterpret_cast<float*>(take(rows * qkv_width_ * 4));
      q_ = take(rows * q_size * item_bytes());
      if (pass) break;
      const size_t bytes = (size_t(used) + kHugePage - 1) / kHugePage * kHugePage;
      memory_ = base = static_cast<char*>(std::aligned_alloc(kHugePage, bytes));
      if (!base) return false;
      madvise(base, bytes, MADV_HUGEPAGE);  // advice: rows of a step are many small pages apart
      std::memset(base, 0, size_t(used));
    }
    return true;
  }

  template <class Take>
  void lay_out(const Take& take, int64_t rows, int width, Activations* a) {
    a->row_bytes = round_up(width * item_bytes(), 64);
    a->numbers = take(rows * a->row_bytes);
    a->code_bytes = quantised_row_bytes(width);
    a->codes = reinterpret_cast<int8_t*>(take(rows * a->code_bytes));
    a->scales = reinterpret_cast<float*>(take(rows * (width / kGroupInputs + 1) * 4));
    a->sums = take(rows * (width / kGroupInputs + 1) * 4);
  }

  int item_bytes() const { return shape_.dtype == kBFloat16 ? 2 : 4; }

  template <class F>
  static void each_row(Pool* pool, int64_t num_rows, F f) {
    auto body = [&](int64_t group, int) {
      for (int64_t r = group * kRowGroup; r < std::min(num_rows, (group + 1) * kRowGroup); ++r) f(r);
    };
    pool->each((num_rows + kRowGroup - 1) / kRowGroup, body);
  }

  template <class T>
  int32_t forward_as(Pool* pool, const Step& step) {
    const int64_t T_ = step.num_tokens, H = shape_.hidden_size;
    make_tiles(step.query_starts, step.kv_lens, step.num_rows, shape_.num_heads / shape_.num_kv_heads, &tiles_);
    each_row(pool, T_, [&](int64_t t) { unpack_row(weights_.embedding, int(step.ids[t]), step.hidden + t * H); });
    const Outputs residual{kAdd, kFloat32, step.hidden, H};
    for (int i = 0; i < shape_.num_layers; ++i) {
      const Layer& layer = weights_.layers[i];
      norm<T>(pool, step.hidden, layer.input_norm, layer.qkv, T_);
      multiply(pool, layer.qkv, hidden_in_, T_, {kStore, kFloat32, qkv_, qkv_width_});
      rotate<T>(pool, step, layer, i);
      if (const int32_t failed = attend_layer(pool, step, layer, i)) return failed;
      quantise<T>(pool, layer.output, attended_, T_);
      multiply(pool, layer.output, attended_, T_, residual);
      norm<T>(pool, step.hidden, layer.post_attention_norm, layer.gate_up, T_);
      multiply(pool, layer.gate_up, hidden_in_, T_,
               {kSiluMul, shape_.dtype, activated_.numbers, activated_.row_bytes / item_bytes()});
      quantise<T>(pool, layer.down, activated_, T_);
      multiply(pool, layer.down, activated_, T_, residual);
    }
    return 0;
  }

  // hidden_in_ = the norm of float rows, in the form that `next` takes.
  template <class T>
  void norm(Pool* pool, const float* rows, const float* weight, const Linear& next, int64_t num_rows) {
    const int n = shape_.hidden_size;
    each_row(pool, num_rows, [&](int64_t r) {
      if (!is_quantised(next.kind)) {
        rms_norm_row(rows + r * n, weight, n, shape_.norm_eps,
                     reinterpret_cast<T*>(hidden_in_.numbers + r * hidden_in_.row_bytes));
        return;
      }
      float normed[kMaxInputs];
      rms_norm_row(rows + r * n, weight, n, shape_.norm_eps, normed);
      quantise_into(next, hidden_in_, r, normed, n);
    });
  }

  template <class T>
  void quantise(Pool* pool, const Linear& next, const Activations& a, int64_t num_rows) {
    if (!is_quantised(next.kind)) return;
    each_row(pool, num_rows, [&](int64_t r) {
      quantise_into(next, a, r, reinterpret_cast<const T*>(a.numbers + r * a.row_bytes), next.num_inputs);
    });
  }

  template <class T>
  static void quantise_into(const Linear& next, const Activations& a, int64_t row, const T* x, int n) {
    quantise_row(next.kind, x, n, row, a.codes + row * a.code_bytes, a.scales, a.sums);
  }

  static void multiply(Pool* pool, const Linear& linear, const Activations& a, int64_t num_rows, const Outputs& out) {
    if (is_quantised(linear.kind)) {
      run_linear(pool, linear, {a.codes, a.code_bytes, a.scales, a.sums}, num_rows, out);
    } else {
      run_linear(pool, linear, {a.numbers, a.row_bytes, nullptr, nullptr}, num_rows, out);
    }
  }

  template <class T>
  void rotate(Pool* pool, const Step& step, const Layer& layer, int index) {
    const DecoderShape& s = shape_;
    const RotaryCall call{{s.num_heads, s.num_kv_heads, s.head_dim, s.block_size, s.norm_eps},
                          weights_.cos_sin, step.positions, step.blocks, step.offsets,
                          layer.q_norm, layer.k_norm, step.k_pages[index], step.v_pages[index]};
    const int64_t q_size = int64_t(s.num_heads) * s.head_dim;
    each_row(pool, step.num_tokens, [&](int64_t t) {
      rotate_and_store_token<float>(call, t, qkv_ + t * qkv_width_, reinterpret_cast<T*>(q_) + t * q_size);
    });
  }

  int32_t attend_layer(Pool* pool, const Step& step, const Layer& layer, int index) {
    const DecoderShape& s = shape_;
    const AttentionCall call{{s.num_heads, s.num_kv_heads, s.head_dim, s.block_size, s.attention_scale, layer.window},
                             q_, int64_t(s.num_heads) * s.head_dim, step.k_pages[index], step.v_pages[index],
                             step.block_tables, step.table_stride, attended_.numbers,
                             attended_.row_bytes / item_bytes(), &tiles_};
    return attend(pool, DType(s.dtype), call);
  }

  const DecoderShape shape_;
  const DecoderWeights weights_;
  char* memory_ = nullptr;
  Activations hidden_in_, attended_, activated_;
  float* qkv_;
  char* q_;
  int64_t qkv_width_;
  std::vector<QueryTile> tiles_;
};

}  // namespace
}  // namespace cl

// The arrays that `weights` points to must outlive the decoder.
CL_EXPORT void* chairlift_decoder_create(const cl::DecoderShape* shape, const cl::DecoderWeights* weights) {
  return cl::Decoder::create(*shape, *weights);
}
CL_EXPORT void chairlift_decoder_destroy(void* decoder) { delete static_cast<cl::Decoder*>(decoder); }
CL_EXPORT int32_t chairlift_decoder_forward(void* decoder, void* pool, const cl::Step* step) {
  return static_cast<cl::Decoder*>(decoder)->forward(static_cast<cl::Pool*>(pool), *step);
}
CL_EXPORT void chairlift_decoder_logits(void* decoder, void* pool, const float* hidden, int64_t num_rows, float* out) {
  static_cast<cl::Decoder*>(decoder)->logits(static_cast<cl::Pool*>(pool), hidden, num_rows, out);
}
