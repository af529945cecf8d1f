// Transposes 16 rows of dwords, so that a lane is a row: keys of a page into vectors of keys.
#pragma once

#include "simd.h"

namespace cl {

#if defined(__AVX512F__)

// in: 16 rows of at most 16 dwords each (`n` of them), out[c * 16 + r] = in[r][c]. Columns n..15 are written as 0.
CL_INLINE void transpose_16(const char* in, int64_t row_bytes, int n, int32_t* out) {
  VI r[16], t[16];
  for (int i = 0; i < 16; ++i) r[i] = n == 16 ? load_i(in + i * row_bytes) : load_lanes(in + i * row_bytes, n);
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    store_i(out + 16 * i, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
    store_i(out + 16 * (i + 4), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
    store_i(out + 16 * (i + 8), _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
    store_i(out + 16 * (i + 12), _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
  }
}

// Scores of 16 keys by 16 rows, [key][row], to rows: out[r][0..16) for r < rows.
CL_INLINE void turn_scores(const float* in, int rows, float* out, int64_t out_stride) {
  if (rows > 8) {
    alignas(64) int32_t turned[256];
    transpose_16(reinterpret_cast<const char*>(in), 64, 16, turned);
    for (int r = 0; r < rows; ++r) store_i(out + r * out_stride, load_i(turned + 16 * r));
    return;
  }
  for (int r = 0; r < rows; r += 4) {
    for (int key = 0; key < 16; key += 4) {
      const float* at = in + key * 16 + r;
      __m128 a = _mm_load_ps(at), b = _mm_load_ps(at + 16), c = _mm_load_ps(at + 32), d = _mm_load_ps(at + 48);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      const __m128 columns[4] = {a, b, c, d};
      for (int i = 0; i < 4 && r + i < rows; ++i) _mm_storeu_ps(out + (r + i) * out_stride + key, columns[i]);
    }
  }
}

#else

CL_INLINE void transpose_8(const char* in, int64_t row_bytes, int n, int32_t* out) {
  VI r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = n >= 8 ? load_i(in + i * row_bytes) : load_lanes(in + i * row_bytes, n);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm256_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm256_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm256_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    store_i(out + 16 * i, _mm256_permute2x128_si256(r[i], r[i + 4], 0x20));
    store_i(out + 16 * (i + 4), _mm256_permute2x128_si256(r[i], r[i + 4], 0x31));
  }
}

CL_INLINE void transpose_16(const char* in, int64_t row_bytes, int n, int32_t* out) {
  for (int half = 0; half < 2; ++half) {
    transpose_8(in + 8 * half * row_bytes, row_bytes, n, out + 8 * half);
    if (n > 8) transpose_8(in + 8 * half * row_bytes + 32, row_bytes, n - 8, out + 128 + 8 * half);
  }
}

#endif

}  // namespace cl
