// Causal attention of a step's queries over paged keys and values: decode, chunked prefill, and both in one call.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"
#include "pool.h"

namespace cl {

constexpr int kSplitKeys = 256;  // keys whose softmax is taken at once; part of the arithmetic, see attention.cpp

// Some queries of one row, consecutive in the row and in the step.
struct QueryTile {
  int32_t row;
  int32_t first_token;  // in the step
  int32_t num_tokens;
  int32_t first_position;  // of first_token, in the row
};

// Pages are [num_pages, num_kv_heads, block_size, head_dim], block_size a multiple of 16, head_dim of 2 (bf16) or 1.
struct AttentionShape {
  int32_t num_heads, num_kv_heads, head_dim, block_size;
  float scale;
  int32_t window;  // last positions that a token sees; 0 is all
};

struct AttentionCall {
  AttentionShape shape;
  const void* q;      // [num_tokens, num_heads, head_dim], rows `q_stride` items apart
  int64_t q_stride;
  const void* k_pages;
  const void* v_pages;
  const int32_t* block_tables;  // [num_rows, table_stride]
  int64_t table_stride;
  void* out;          // as q
  int64_t out_stride;
  const std::vector<QueryTile>* tiles;
};

// Cuts the rows' queries into tiles. Row r has tokens [query_starts[r], query_starts[r + 1]) of the step, the last of
// its kv_lens[r] positions.
void make_tiles(const int32_t* query_starts, const int32_t* kv_lens, int32_t num_rows, int32_t queries_per_kv_head,
                std::vector<QueryTile>* tiles);

// Returns 0 or kOutOfMemory.
int32_t attend(Pool* pool, DType dtype, const AttentionCall& call);

}  // namespace cl
