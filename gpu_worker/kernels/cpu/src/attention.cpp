// Technique: flash decoding (Dao et al., 2023) over fixed splits of kSplitKeys keys at absolute positions. A query's
// scores, weights and sums within a split, and the order in which splits are merged, depend on its own position only:
// the bits of a row are the same in a decode and in any chunk of a prefill, alone and in any batch, and whether splits
// were computed by one thread or several. Query heads of one KV head share its keys (GQA folding).
//
// No key past a tile's last position takes part: its score is overwritten and its value read as zero, since free pages
// and tails of pages hold anything, NaN included.
#include "attention.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "attention_amx.h"
#include "attention_rows.h"

namespace cl {
namespace {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kTileRows = 64;  // query rows (tokens times heads of a KV head) of a tile, at least one token

#if defined(__AMX_BF16__)
template <class Units>
constexpr bool kHasTiles = std::is_same<Units, Bf16Units>::value;
#else
template <class Units>
constexpr bool kHasTiles = false;
#endif

size_t aligned(size_t bytes) { return (bytes + 63) & ~size_t(63); }

// What one thread needs for a tile of `rows` query rows.
struct Scratch {
  int32_t* keys;     // [kKeyChunks][units][16]
  int32_t* queries;  // tiles: [rows / 16][units rounded up to 16][16]
  float* scores;     // [rows][kSplitKeys]
  int32_t* weights;  // [rows][kSplitKeys / items]
  int32_t* values;   // [kSplitKeys / items][padded_dim]
  float* sums;       // [rows][padded_dim], of the split
  float* merged;     // [rows][padded_dim]
  float* highs;      // [rows] largest score of the split, then of all
  float* totals;
  float* merged_highs;
  float* merged_totals;
  const char** q;    // [rows]

  static size_t layout(char* base, int rows, int units, int dim, Scratch* s) {
    rows = round_up(rows, 16);  // tiles load and store 16 of them
    size_t used = 0;
    const auto take = [&](size_t bytes) {
      char* at = base + used;
      used += aligned(bytes);
      return at;
    };
    s->keys = reinterpret_cast<int32_t*>(take(size_t(kKeyChunks) * units * 64));
    s->queries = reinterpret_cast<int32_t*>(take(size_t(rows) * round_up(units, 16) * 4));
    s->scores = reinterpret_cast<float*>(take(size_t(rows) * kSplitKeys * 4));
    s->weights = reinterpret_cast<int32_t*>(take(size_t(rows) * kSplitKeys * 4));
    s->values = reinterpret_cast<int32_t*>(take(size_t(kSplitKeys) * dim * 4));
    s->sums = reinterpret_cast<float*>(take(size_t(rows) * dim * 4));
    s->merged = reinterpret_cast<float*>(take(size_t(rows) * dim * 4));
    s->highs = reinterpret_cast<float*>(take(size_t(rows) * 4));
    s->totals = reinterpret_cast<float*>(take(size_t(rows) * 4));
    s->merged_highs = reinterpret_cast<float*>(take(size_t(rows) * 4));
    s->merged_totals = reinterpret_cast<float*>(take(size_t(rows) * 4));
    s->q = reinterpret_cast<const char**>(take(size_t(rows) * sizeof(char*)));
    return used;
  }
};

template <class Units>
class TileAttention {
  using Item = typename Units::Item;

 public:
  TileAttention(const AttentionCall& call, const QueryTile& tile, int kv_head, char* scratch)
      : call_(call), shape_(call.shape), tile_(tile), kv_head_(kv_head) {
    group_ = shape_.num_heads / shape_.num_kv_heads;
    rows_ = tile.num_tokens * group_;
    units_ = shape_.head_dim / Units::kItems;
    dim_ = padded_dim(shape_.head_dim);
    end_ = tile.first_position + tile.num_tokens;
    begin_ = window_begin(tile);
    Scratch::layout(scratch, rows_, units_, dim_, &s_);
    for (int r = 0; r < rows_; ++r) s_.q[r] = query(r);
  }

  static size_t scratch_bytes(const AttentionShape& shape, int max_tokens) {
    Scratch unused;
    const int rows = max_tokens * (shape.num_heads / shape.num_kv_heads);
    return Scratch::layout(nullptr, rows, shape.head_dim / Units::kItems, padded_dim(shape.head_dim), &unused);
  }

  void run() {
    std::fill_n(s_.merged_highs, rows_, kMinusInfinity);
    start_tiles();
    for (int split = begin_ / kSplitKeys; split * kSplitKeys < end_; ++split) {
      compute_split(split);
      merge_split();
    }
    end_tiles();
    for (int r = 0; r < rows_; ++r) {
      Item* out = static_cast<Item*>(call_.out) + int64_t(tile_.first_token + r / group_) * call_.out_stride +
                  int64_t(kv_head_ * group_ + r % group_) * shape_.head_dim;
      write_row(s_.merged + int64_t(r) * dim_, 1.0f / s_.merged_totals[r], shape_.head_dim, out);
    }
  }

 private:
  void start_tiles() {
#if defined(__AMX_BF16__)
    if (!kHasTiles<Units>) return;
    for (int r = 0; r < rows_; r += 16) {
      prepare_queries(s_.q + r, std::min(16, rows_ - r), shape_.head_dim,
                      s_.queries + r / 16 * query_tile_dwords(shape_.head_dim));
    }
    configure_attention(shape_.head_dim);
#endif
  }
  void end_tiles() {
#if defined(__AMX_BF16__)
    if (kHasTiles<Units>) _tile_release();
#endif
  }

  const char* query(int r) const {
    return reinterpret_cast<const char*>(static_cast<const Item*>(call_.q) +
                                         int64_t(tile_.first_token + r / group_) * call_.q_stride +
                                         int64_t(kv_head_ * group_ + r % group_) * shape_.head_dim);
  }

  int window_begin(const QueryTile& tile) const {
    return shape_.window ? std::max(0, tile.first_position - shape_.window + 1) : 0;
  }

  // Row `position` of this KV head in `pages`.
  const Item* page_row(const void* pages, int position) const { return page_row(pages, tile_, kv_head_, position); }

  const Item* page_row(const void* pages, const QueryTile& tile, int kv_head, int position) const {
    const int block_size = shape_.block_size;
    const int64_t page = call_.block_tables[tile.row * call_.table_stride + position / block_size];
    const int64_t row = (page * shape_.num_kv_heads + kv_head) * block_size + position % block_size;
    return static_cast<const Item*>(pages) + row * shape_.head_dim;
  }

  void compute_split(int split) {
    const int base = split * kSplitKeys;
    const int from = std::max(base, begin_) / kChunkKeys * kChunkKeys;
    const int to = std::min(base + kSplitKeys, end_);
    look_ahead(split);
    if constexpr (kHasTiles<Units>) {
      score_by_tiles(base, from, to);
    } else {
      for (int key = from; key < to; key += kChunkKeys) score_chunk(key, to, s_.scores + (key - base));
    }
    for (int r = 0; r < rows_; ++r) soften_row(r, base, from, to);
    if constexpr (kHasTiles<Units>) {
      if (rows_ <= 16 && dim_ <= 64) return weigh_while_preparing(base, from, to);
      prepare_split_values(base, from, to);
      weigh_by_tiles(base, from, to);
    } else {
      prepare_split_values(base, from, to);
      weigh_values((from - base) / Units::kItems, (to - base + Units::kItems - 1) / Units::kItems);
    }
  }

#if defined(__AMX_BF16__)
  void score_by_tiles(int base, int from, int to) {
    for (int key = from; key < to; key += kKeysAtOnce) {
      const char* keys[4];
      int num_tiles = 0;
      for (; num_tiles < 4 && key + 16 * num_tiles < to; ++num_tiles) {
        keys[num_tiles] = reinterpret_cast<const char*>(page_row(call_.k_pages, key + 16 * num_tiles));
      }
      for (int r = 0; r < rows_; r += 16) {
        score_tiles(s_.queries + r / 16 * query_tile_dwords(shape_.head_dim), std::min(16, rows_ - r), keys, num_tiles,
                    shape_.head_dim, s_.scores + int64_t(r) * kSplitKeys + (key - base), kSplitKeys);
      }
    }
  }

  void weigh_by_tiles(int base, int from, int to) {
    const int blocks = (to - from + 31) / 32;
    for (int r = 0; r < rows_; r += 16) {
      for (int d = 0; d < dim_; d += 64) {
        const int num_tiles = dim_ - d < 64 ? 2 : 4;
        const int32_t* values = s_.values + int64_t(from - base) / 2 * dim_ + d;
        begin_weighing();
        for (int b = 0; b < blocks; ++b) {
          const int32_t* block = values + int64_t(b) * 16 * dim_;
          weigh_block(weights(r, from - base + 32 * b), kSplitKeys * 2, block, dim_, num_tiles);
        }
        end_weighing(num_tiles, s_.sums + int64_t(r) * dim_ + d, dim_);
      }
    }
  }

  // The same for few rows, as decodes are: values of 32 keys are prepared while those of the 32 before are multiplied,
  // and never leave the first-level cache. 11.7 thousand cycles for 210 keys from memory instead of 12.5.
  void weigh_while_preparing(int base, int from, int to) {
    const int blocks = (to - from + 31) / 32;
    const auto values = [&](int b) { return s_.values + (b & 1) * 16 * dim_; };
    begin_weighing();
    for (int b = 0; b <= blocks; ++b) {
      if (b < blocks) prepare_block(from + 32 * b, from, to, values(b));
      if (b > 0) weigh_block(weights(0, from - base + 32 * (b - 1)), kSplitKeys * 2, values(b - 1), dim_, dim_ / 16);
    }
    end_weighing(dim_ / 16, s_.sums, dim_);
  }

  // Values of the 32 keys at `key`, zeros from `to` on.
  void prepare_block(int key, int from, int to, int32_t* out) {
    if (to - key < 32) std::memset(out, 0, size_t(16) * dim_ * 4);
    for (int chunk = key; chunk < std::min(key + 32, to); chunk += 16) {
      prepare_chunk(chunk, from, to, out + int64_t(chunk - key) / 2 * dim_);
    }
  }

  const char* weights(int row, int key) const {
    return reinterpret_cast<const char*>(s_.weights + int64_t(row) * (kSplitKeys / 2)) + key * 2;
  }
#else
  void score_by_tiles(int, int, int) {}
  void weigh_by_tiles(int, int, int) {}
  void weigh_while_preparing(int, int, int) {}
#endif

  // ---- what is read after this split is asked for meanwhile: pages lie anywhere, the processor cannot guess ----
  // A few lines at a time: in bursts they fill the core's miss buffers and stop it. Into the second-level cache: a
  // first-level one of 48 KiB does not hold what is in work and what comes next. Thousands of cycles for a row and head
  // of 210 keys from memory, one thread beside a busy one: 12.5 so, 13.4 into the first-level cache, 14.2 without.

  void look_ahead(int split) {
    const bool is_last = (split + 1) * kSplitKeys >= end_;
    ahead_tile_ = &tile_;
    ahead_head_ = kv_head_ + (is_last ? 1 : 0);
    ahead_ = is_last ? begin_ / 16 * 16 : (split + 1) * kSplitKeys;
    if (ahead_head_ == shape_.num_kv_heads) {
      ahead_head_ = 0;
      ahead_tile_ = &tile_ == &call_.tiles->back() ? nullptr : &tile_ + 1;
      if (ahead_tile_) ahead_ = window_begin(*ahead_tile_) / 16 * 16;
    }
    ahead_end_ = ahead_tile_ ? ahead_tile_->first_position + ahead_tile_->num_tokens : 0;
  }

  // Rows of the 16 keys at `key` after the start of what comes next, null when there are none.
  const char* ahead_row(const void* pages, int key) const {
    if (ahead_ + key >= ahead_end_) return nullptr;
    return reinterpret_cast<const char*>(page_row(pages, *ahead_tile_, ahead_head_, ahead_ + key));
  }

  void score_chunk(int key, int to, float* scores) {
    for (int chunk = 0; chunk < kKeyChunks; ++chunk) {
      // A chunk past the end scores the first one again: its scores are never read.
      const int at = key + 16 * chunk < to ? key + 16 * chunk : key;
      const char* rows = reinterpret_cast<const char*>(page_row(call_.k_pages, at));
      int32_t* out = s_.keys + chunk * units_ * 16;
      for (int u = 0; u < units_; u += 16) transpose_chunk(rows, u, out);
    }
    for (int r = 0; r < rows_; r += kRowBlock) {
      with_rows(std::min(kRowBlock, rows_ - r), [&](auto n) CL_LAMBDA_INLINE {
        score_rows<Units, decltype(n)::value>(s_.q + r, s_.keys, units_, scores + r * kSplitKeys, kSplitKeys);
      });
    }
  }

  void transpose_chunk(const char* rows, int u, int32_t* out) {
    const int64_t row_bytes = int64_t(shape_.head_dim) * sizeof(Item);
    const int n = std::min(16, units_ - u);
    if (n == 16) {
      transpose_16(rows + 4 * u, row_bytes, 16, out + u * 16);
      return;
    }
    int32_t partial[256];
    transpose_16(rows + 4 * u, row_bytes, n, partial);
    std::memcpy(out + u * 16, partial, size_t(n) * 64);
  }

  // Scores of row r to weights: 2^(score - largest), 0 for keys that the row does not see.
  void soften_row(int r, int base, int from, int to) {
    const int position = tile_.first_position + r / group_;
    const int hi = std::min(position + 1, to) - base;
    const int lo = (shape_.window ? std::max(from, position - shape_.window + 1) : from) - base;
    float* scores = s_.scores + r * kSplitKeys;
    Item* weights = reinterpret_cast<Item*>(s_.weights + r * (kSplitKeys / Units::kItems));
    const int first = from - base, last = round_up(to - base, kHasTiles<Units> ? 32 : W);
    s_.highs[r] = kMinusInfinity;
    if (lo >= hi) {
      for (int i = first; i < last; i += W) store(weights + i, zero());
      return;
    }
    VF high = set1(kMinusInfinity);
    for (int i = lo / W * W; i < hi; i += W) {
      high = vmax(high, select_range(lo - i, hi - i, load(scores + i), set1(kMinusInfinity)));
    }
    const float factor = shape_.scale * kLog2E;
    const float largest = reduce_max(high) * factor;
    VF total = zero();
    for (int i = first; i < last; i += W) {
      const VF weight = exp2_neg(fma(load(scores + i), set1(factor), set1(-largest)));
      const VF seen = select_range(lo - i, hi - i, weight, zero());
      total = add(total, seen);
      store(weights + i, seen);
    }
    s_.highs[r] = largest;
    s_.totals[r] = reduce_add(total);
  }

  void prepare_split_values(int base, int from, int to) {
    if (kHasTiles<Units>) {  // a tile takes 32 keys: those past the end count as zeros
      const int used = round_up(to - base, 2), padded = round_up(to - base, 32);
      std::memset(s_.values + int64_t(used) / 2 * dim_, 0, size_t(padded - used) / 2 * dim_ * 4);
    }
    for (int chunk = from; chunk < to; chunk += 16) {
      prepare_chunk(chunk, from, to, s_.values + int64_t(chunk - base) / Units::kItems * dim_);
    }
  }

  // Values of at most 16 keys, those before `to`; asks for as many of what is read next.
  void prepare_chunk(int chunk, int from, int to, int32_t* out) {
    const int dim = shape_.head_dim;
    const Item* rows = page_row(call_.v_pages, chunk);
    const char* ahead[2] = {ahead_row(call_.k_pages, chunk - from), ahead_row(call_.v_pages, chunk - from)};
    for (int i = 0; i < std::min(16, to - chunk); i += Units::kItems) {
      const Item* first = rows + int64_t(i) * dim;
      const Item* second = chunk + i + 1 < to ? first + dim : nullptr;
      for (const char* next : ahead) {
        const int64_t at = int64_t(i) * dim * sizeof(Item), bytes = int64_t(Units::kItems) * dim * sizeof(Item);
        for (int64_t b = at; next && b < at + bytes; b += 64) _mm_prefetch(next + b, _MM_HINT_T1);
      }
      prepare_values(first, second, dim, out + int64_t(i) / Units::kItems * dim_);
    }
  }

  void weigh_values(int from, int to) {
    constexpr int stride = kSplitKeys / Units::kItems;
    for (int r = 0; r < rows_; r += kRowBlock) {
      for (int d = 0; d < dim_; d += 2 * W) {
        with_rows(std::min(kRowBlock, rows_ - r), [&](auto n) CL_LAMBDA_INLINE {
          weigh_rows<Units, decltype(n)::value>(s_.weights + r * stride + from, stride,
                                                s_.values + int64_t(from) * dim_ + d, dim_, to - from,
                                                s_.sums + int64_t(r) * dim_ + d, dim_);
        });
      }
    }
  }

  void merge_split() {
    for (int r = 0; r < rows_; ++r) {
      if (s_.highs[r] == kMinusInfinity) continue;
      float* merged = s_.merged + int64_t(r) * dim_;
      const float* sums = s_.sums + int64_t(r) * dim_;
      if (s_.merged_highs[r] == kMinusInfinity) {
        std::memcpy(merged, sums, size_t(dim_) * 4);
        s_.merged_highs[r] = s_.highs[r];
        s_.merged_totals[r] = s_.totals[r];
        continue;
      }
      const float high = std::max(s_.merged_highs[r], s_.highs[r]);
      float keep[W], take[W];
      store(keep, exp2_neg(set1(s_.merged_highs[r] - high)));
      store(take, exp2_neg(set1(s_.highs[r] - high)));
      const VF old_part = set1(keep[0]), new_part = set1(take[0]);
      for (int d = 0; d < dim_; d += W) {
        store(merged + d, fma(load(merged + d), old_part, mul(load(sums + d), new_part)));
      }
      s_.merged_highs[r] = high;
      s_.merged_totals[r] = std::fma(s_.merged_totals[r], keep[0], s_.totals[r] * take[0]);
    }
  }

  const AttentionCall& call_;
  const AttentionShape& shape_;
  const QueryTile& tile_;
  int kv_head_, group_, rows_, units_, dim_, begin_, end_;
  const QueryTile* ahead_tile_ = nullptr;
  int ahead_head_ = 0, ahead_ = 0, ahead_end_ = 0;
  Scratch s_;
};

template <class Units>
int32_t attend_as(Pool* pool, const AttentionCall& call) {
  int max_tokens = 0;
  for (const QueryTile& tile : *call.tiles) max_tokens = std::max(max_tokens, tile.num_tokens);
  if (!pool->reserve_scratch(TileAttention<Units>::scratch_bytes(call.shape, max_tokens))) return kOutOfMemory;
  const int heads = call.shape.num_kv_heads;
  auto body = [&](int64_t item, int thread) {
    char* scratch = static_cast<char*>(pool->scratch(thread));
    TileAttention<Units>(call, (*call.tiles)[item / heads], int(item % heads), scratch).run();
  };
  pool->each(int64_t(call.tiles->size()) * heads, body);
  return 0;
}

}  // namespace

void make_tiles(const int32_t* query_starts, const int32_t* kv_lens, int32_t num_rows, int32_t queries_per_kv_head,
                std::vector<QueryTile>* tiles) {
  tiles->clear();
  const int32_t step = std::max(1, kTileRows / queries_per_kv_head);
  for (int32_t row = 0; row < num_rows; ++row) {
    const int32_t end = query_starts[row + 1];
    for (int32_t token = query_starts[row]; token < end; token += step) {
      tiles->push_back({row, token, std::min(step, end - token), kv_lens[row] - (end - token)});
    }
  }
}

int32_t attend(Pool* pool, DType dtype, const AttentionCall& call) {
  return dtype == kBFloat16 ? attend_as<Bf16Units>(pool, call) : attend_as<FloatUnits>(pool, call);
}

}  // namespace cl

CL_EXPORT int32_t chairlift_attention(void* pool, int32_t dtype, const cl::AttentionShape* shape, const void* q,
                                      int64_t q_stride, const void* k_pages, const void* v_pages,
                                      const int32_t* block_tables, int64_t table_stride, const int32_t* query_starts,
                                      const int32_t* kv_lens, int32_t num_rows, void* out, int64_t out_stride) {
  std::vector<cl::QueryTile> tiles;
  cl::make_tiles(query_starts, kv_lens, num_rows, shape->num_heads / shape->num_kv_heads, &tiles);
  const cl::AttentionCall call{*shape, q, q_stride, k_pages, v_pages, block_tables, table_stride, out, out_stride,
                               &tiles};
  return cl::attend(static_cast<cl::Pool*>(pool), cl::DType(dtype), call);
}
