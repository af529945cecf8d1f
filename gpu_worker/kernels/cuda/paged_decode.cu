// Split-KV decode attention over a paged cache, for one shape given by macros:
//   HEAD_DIM (64, 128, 256), GROUP (query heads a KV head), NUM_KV_HEADS, BLOCK_SIZE (tokens a page).
// Layout: pages [num_pages, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM] bf16, contiguous, 16-byte aligned.
// Flash-decoding (Dao et al., 2023): each block of threads keeps the softmax of one split of one row and KV head; a
// second kernel joins the splits. A row of length 0 gives zeros. Nothing past a row's length is read.
// No header is included: NVRTC has none at hand. CUDA_EMULATION: a C++ compiler with a shim, in tests.
#ifndef CUDA_EMULATION
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
#endif

constexpr int NUM_WARPS = 4;
constexpr int LANES = HEAD_DIM / 8;             // lanes a token, 16 bytes each
constexpr int TOKENS_A_WARP = 32 / LANES;
constexpr int GROUPS = NUM_WARPS * TOKENS_A_WARP;  // tokens that the block takes at once
constexpr int UNROLL = GROUP > 4 ? 2 : 4;       // loads in flight a lane
constexpr int CHUNK = 64;                       // a split is a multiple of this: the same number as in Python
constexpr float LOG2E = 1.4426950408889634f;
static_assert(32 % LANES == 0 && CHUNK % 16 == 0, "shape");

struct alignas(16) Eight { u32 word[4]; };

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }
__device__ __forceinline__ float low_half(u32 word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float high_half(u32 word) { return __uint_as_float(word & 0xffff0000u); }

__device__ __forceinline__ void widen(const Eight& packed, float* out) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = low_half(packed.word[i]);
    out[2 * i + 1] = high_half(packed.word[i]);
  }
}

// To bf16, to the nearest even; a NaN stays one.
__device__ __forceinline__ u16 narrow(float value) {
  const u32 bits = __float_as_uint(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

__device__ __forceinline__ int split_size(int length, int splits) {
  return ((length + splits - 1) / splits + CHUNK - 1) / CHUNK * CHUNK;
}

__device__ __forceinline__ int first_position(int kv_len, int window) {
  return window > 0 && kv_len > window ? kv_len - window : 0;
}

// Grid (rows, NUM_KV_HEADS, splits), 128 threads. part [rows, heads, splits, HEAD_DIM] and lse [rows, heads, splits]
// (base 2) of the splits that hold positions. `rows`: block table of each row; null: row i has table i.
extern "C" __global__ void __launch_bounds__(NUM_WARPS * 32)
paged_decode(const u16* __restrict__ q, const u16* __restrict__ k_pages, const u16* __restrict__ v_pages,
             const int* __restrict__ tables, const int* __restrict__ kv_lens, const int* __restrict__ rows,
             float* __restrict__ part, float* __restrict__ lse, float softmax_scale, int window, i64 q_stride,
             i64 table_stride) {
  __shared__ float shared_max[GROUPS][GROUP], shared_sum[GROUPS][GROUP], shared_out[GROUPS][HEAD_DIM];
  const int row = blockIdx.x, kv_head = blockIdx.y, split = blockIdx.z, splits = gridDim.z;
  const int kv_len = kv_lens[row];
  const int origin = first_position(kv_len, window);
  const int size = split_size(kv_len - origin, splits);
  const int begin = origin + split * size;
  if (begin >= kv_len) return;
  const int end = begin + size < kv_len ? begin + size : kv_len;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int place = warp * TOKENS_A_WARP + lane / LANES, part_of_head = lane % LANES * 8;
  const int* __restrict__ table = tables + (rows ? rows[row] : row) * table_stride;

  float query[GROUP][8], acc[GROUP][8], highest[GROUP], total[GROUP];
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    const u16* source = q + row * q_stride + (kv_head * GROUP + g) * HEAD_DIM + part_of_head;
    widen(*reinterpret_cast<const Eight*>(source), query[g]);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      query[g][i] *= softmax_scale * LOG2E;
      acc[g][i] = 0.f;
    }
    highest[g] = minus_infinity();
    total[g] = 0.f;
  }

  for (int base = begin; base < end; base += GROUPS * UNROLL) {
    Eight k[UNROLL], v[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const int position = base + u * GROUPS + place;
      k[u] = Eight{{0, 0, 0, 0}};
      v[u] = k[u];
      if (position < end) {
        const i64 slot = (static_cast<i64>(table[position / BLOCK_SIZE]) * NUM_KV_HEADS + kv_head) * BLOCK_SIZE +
                         position % BLOCK_SIZE;
        k[u] = *reinterpret_cast<const Eight*>(k_pages + slot * HEAD_DIM + part_of_head);
        v[u] = *reinterpret_cast<const Eight*>(v_pages + slot * HEAD_DIM + part_of_head);
      }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; ++u) {
      const bool is_held = base + u * GROUPS + place < end;
      float key[8], value[8];
      widen(k[u], key);
      widen(v[u], value);
#pragma unroll
      for (int g = 0; g < GROUP; ++g) {
        float score = 0.f;
#pragma unroll
        for (int i = 0; i < 8; ++i) score += query[g][i] * key[i];
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) score += __shfl_xor_sync(0xffffffffu, score, offset);
        if (is_held) {
          const float raised = fmaxf(highest[g], score);
          const float alpha = exp2f(highest[g] - raised), weight = exp2f(score - raised);
          total[g] = total[g] * alpha + weight;
          highest[g] = raised;
#pragma unroll
          for (int i = 0; i < 8; ++i) acc[g][i] = acc[g][i] * alpha + weight * value[i];
        }
      }
    }
  }

  if (lane % LANES == 0) {
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
      shared_max[place][g] = highest[g];
      shared_sum[place][g] = total[g];
    }
  }
#pragma unroll
  for (int g = 0; g < GROUP; ++g) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) shared_out[place][part_of_head + i] = acc[g][i];
    __syncthreads();
    float top = minus_infinity(), sum = 0.f;
    for (int j = 0; j < GROUPS; ++j) top = fmaxf(top, shared_max[j][g]);
    for (int j = 0; j < GROUPS; ++j) sum += shared_sum[j][g] * exp2f(shared_max[j][g] - top);
    const i64 target = (static_cast<i64>(row) * NUM_KV_HEADS * GROUP + kv_head * GROUP + g) * splits + split;
    for (int d = threadIdx.x; d < HEAD_DIM; d += NUM_WARPS * 32) {
      float joined = 0.f;
      for (int j = 0; j < GROUPS; ++j) joined += shared_out[j][d] * exp2f(shared_max[j][g] - top);
      part[target * HEAD_DIM + d] = joined / sum;
    }
    if (threadIdx.x == 0) lse[target] = top + log2f(sum);
  }
}

// Grid (rows, heads), HEAD_DIM threads: joins the splits that hold positions of the row.
extern "C" __global__ void __launch_bounds__(HEAD_DIM)
reduce_splits(const float* __restrict__ part, const float* __restrict__ lse, const int* __restrict__ kv_lens,
              u16* __restrict__ out, int window, int splits, i64 out_stride) {
  const int row = blockIdx.x, head = blockIdx.y, d = threadIdx.x;
  const int kv_len = kv_lens[row];
  const int length = kv_len - first_position(kv_len, window);
  const int size = split_size(length, splits);
  const int used = size > 0 ? (length + size - 1) / size : 0;
  const i64 source = (static_cast<i64>(row) * NUM_KV_HEADS * GROUP + head) * splits;
  float top = minus_infinity(), sum = 0.f, joined = 0.f;
  for (int s = 0; s < used; ++s) top = fmaxf(top, lse[source + s]);
  for (int s = 0; s < used; ++s) {
    const float weight = exp2f(lse[source + s] - top);
    sum += weight;
    joined += weight * part[(source + s) * HEAD_DIM + d];
  }
  out[row * out_stride + head * HEAD_DIM + d] = narrow(used > 0 ? joined / sum : 0.f);
}
