// A whole decoder step in one call: all layers, from token ids to hidden states, and from hidden states to logits.
//
// The residual stream stays in float; norms, attention and products are those of the single operations. Buffers are
// taken once, for the largest step.
#pragma once

#include "attention.h"
#include "linear.h"
#include "rotary.h"

namespace cl {

struct Layer {
  Linear qkv, output, gate_up, down;
  const float* input_norm;
  const float* post_attention_norm;
  const float* q_norm;  // [head_dim] or null, as k_norm
  const float* k_norm;
  int32_t window;       // 0: all positions
};

struct DecoderShape {
  int32_t num_layers, hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim, block_size;
  int32_t dtype;        // of pages, and of activations between float operations
  int32_t max_tokens;   // of a step
  int32_t max_rows;     // of logits at once
  float norm_eps, attention_scale;
};

struct DecoderWeights {
  Linear embedding;
  Linear head;
  const float* final_norm;
  const float* cos_sin;  // [max_positions, head_dim]
  const Layer* layers;
};

// T tokens of several rows; see AttentionCall for the rows.
struct Step {
  int64_t num_tokens;
  const int64_t* ids;
  const int64_t* positions;
  const int64_t* blocks;
  const int64_t* offsets;
  const int32_t* block_tables;
  int64_t table_stride;
  const int32_t* query_starts;
  const int32_t* kv_lens;
  int32_t num_rows;
  void* const* k_pages;  // one pointer a layer
  void* const* v_pages;
  float* hidden;         // [T, hidden_size] out: the residual stream after the last layer
};

}  // namespace cl
