// Vectors of W 32-bit lanes for the instruction set that this file is compiled for, and the numbers built on them.
// One shared library is built per instruction set; nothing here looks at the machine at run time.
//
// Bit-exactness: every function is a fixed sequence of operations on a lane, so a lane's result does not depend on its
// neighbours. The library is compiled with -ffp-contract=off: a fused multiply-add happens where it is written only.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define CL_INLINE __attribute__((always_inline)) inline
#define CL_LAMBDA_INLINE __attribute__((always_inline))

namespace cl {

CL_INLINE int round_up(int n, int to) { return (n + to - 1) / to * to; }

struct bf16 {
  uint16_t bits;
};

CL_INLINE float to_float(bf16 x) {
  const uint32_t u = uint32_t(x.bits) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
CL_INLINE float to_float(float x) { return x; }

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

constexpr int W = 16;
using VF = __m512;
using VI = __m512i;

CL_INLINE VF zero() { return _mm512_setzero_ps(); }
CL_INLINE VI zero_i() { return _mm512_setzero_si512(); }
CL_INLINE VF set1(float x) { return _mm512_set1_ps(x); }
CL_INLINE VI set1_i(int32_t x) { return _mm512_set1_epi32(x); }
CL_INLINE VF load(const float* p) { return _mm512_loadu_ps(p); }
CL_INLINE void store(float* p, VF x) { _mm512_storeu_ps(p, x); }
CL_INLINE VI load_i(const void* p) { return _mm512_loadu_si512(p); }
CL_INLINE void store_i(void* p, VI x) { _mm512_storeu_si512(p, x); }
CL_INLINE VF add(VF a, VF b) { return _mm512_add_ps(a, b); }
CL_INLINE VF sub(VF a, VF b) { return _mm512_sub_ps(a, b); }
CL_INLINE VF mul(VF a, VF b) { return _mm512_mul_ps(a, b); }
CL_INLINE VF div(VF a, VF b) { return _mm512_div_ps(a, b); }
CL_INLINE VF fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
CL_INLINE VF vmax(VF a, VF b) { return _mm512_max_ps(a, b); }
CL_INLINE VF vmin(VF a, VF b) { return _mm512_min_ps(a, b); }
CL_INLINE VF round_even(VF a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CL_INLINE VF scale2(VF a, VF n) { return _mm512_scalef_ps(a, n); }  // a * 2^n, n whole
CL_INLINE VF abs(VF a) { return _mm512_abs_ps(a); }
CL_INLINE VF as_f(VI a) { return _mm512_castsi512_ps(a); }
CL_INLINE VI as_i(VF a) { return _mm512_castps_si512(a); }
CL_INLINE VI to_int(VF a) { return _mm512_cvtps_epi32(a); }
CL_INLINE VF from_int(VI a) { return _mm512_cvtepi32_ps(a); }
CL_INLINE VI add_i(VI a, VI b) { return _mm512_add_epi32(a, b); }
CL_INLINE VI and_i(VI a, VI b) { return _mm512_and_si512(a, b); }
CL_INLINE VI xor_i(VI a, VI b) { return _mm512_xor_si512(a, b); }
CL_INLINE VI shift_right(VI a, int n) { return _mm512_srli_epi32(a, n); }
CL_INLINE VI shift_left(VI a, int n) { return _mm512_slli_epi32(a, n); }
CL_INLINE VI lane_index() { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
// x where lo <= lane < hi, else y.
CL_INLINE VF select_range(int lo, int hi, VF x, VF y) {
  const VI i = lane_index();
  const __mmask16 m = _mm512_cmpge_epi32_mask(i, set1_i(lo)) & _mm512_cmplt_epi32_mask(i, set1_i(hi));
  return _mm512_mask_blend_ps(m, y, x);
}
// A bit a lane: NaN, or equal.
CL_INLINE unsigned nan_lanes(VF a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
CL_INLINE unsigned equal_lanes(VF a, VF b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
CL_INLINE float reduce_add(VF a) { return _mm512_reduce_add_ps(a); }
CL_INLINE float reduce_max(VF a) { return _mm512_reduce_max_ps(a); }
CL_INLINE VI max_i(VI a, VI b) { return _mm512_max_epi32(a, b); }
CL_INLINE int32_t reduce_max_i(VI a) { return _mm512_reduce_max_epi32(a); }
CL_INLINE int32_t reduce_add_i(VI a) { return _mm512_reduce_add_epi32(a); }
// Lanes in [-128, 127] as W bytes.
CL_INLINE void store_bytes(int8_t* p, VI a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtsepi32_epi8(a)); }
CL_INLINE VF load(const bf16* p) {
  return as_f(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
#if defined(__AVX512BF16__)
CL_INLINE void store(bf16* p, VF x) { _mm256_storeu_si256((__m256i*)p, (__m256i)_mm512_cvtneps_pbh(x)); }
#else
CL_INLINE void store(bf16* p, VF x) {
  const VI u = as_i(x);
  const VI even = _mm512_add_epi32(_mm512_and_si512(_mm512_srli_epi32(u, 16), set1_i(1)), set1_i(0x7fff));
  const VI rounded = _mm512_srli_epi32(_mm512_add_epi32(u, even), 16);
  const VI quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), set1_i(0x40));
  const VI r = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(r));
}
#endif
CL_INLINE VI load_lanes(const void* p, int n) {  // first n dwords, rest 0
  return _mm512_maskz_loadu_epi32((__mmask16)((1u << n) - 1), p);
}
// (a0 b0 a1 b1 ...) of 16-bit items, the two halves of every 128-bit lane apart: lanes of the results are permuted.
CL_INLINE VI zip_lo16(VI a, VI b) { return _mm512_unpacklo_epi16(a, b); }
CL_INLINE VI zip_hi16(VI a, VI b) { return _mm512_unpackhi_epi16(a, b); }
// Puts lanes that came from zip_lo16 and zip_hi16 back in order.
CL_INLINE void unzip_lanes(VF lo, VF hi, VF* first, VF* second) {
  const VI i = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  *first = _mm512_permutex2var_ps(lo, i, hi);
  *second = _mm512_permutex2var_ps(lo, add_i(i, set1_i(8)), hi);
}

#elif defined(__AVX2__) && defined(__FMA__)

constexpr int W = 8;
using VF = __m256;
using VI = __m256i;

CL_INLINE VF zero() { return _mm256_setzero_ps(); }
CL_INLINE VI zero_i() { return _mm256_setzero_si256(); }
CL_INLINE VF set1(float x) { return _mm256_set1_ps(x); }
CL_INLINE VI set1_i(int32_t x) { return _mm256_set1_epi32(x); }
CL_INLINE VF load(const float* p) { return _mm256_loadu_ps(p); }
CL_INLINE void store(float* p, VF x) { _mm256_storeu_ps(p, x); }
CL_INLINE VI load_i(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
CL_INLINE void store_i(void* p, VI x) { _mm256_storeu_si256((__m256i*)p, x); }
CL_INLINE VF add(VF a, VF b) { return _mm256_add_ps(a, b); }
CL_INLINE VF sub(VF a, VF b) { return _mm256_sub_ps(a, b); }
CL_INLINE VF mul(VF a, VF b) { return _mm256_mul_ps(a, b); }
CL_INLINE VF div(VF a, VF b) { return _mm256_div_ps(a, b); }
CL_INLINE VF fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
CL_INLINE VF vmax(VF a, VF b) { return _mm256_max_ps(a, b); }
CL_INLINE VF vmin(VF a, VF b) { return _mm256_min_ps(a, b); }
CL_INLINE VF round_even(VF a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
CL_INLINE VF as_f(VI a) { return _mm256_castsi256_ps(a); }
CL_INLINE VI as_i(VF a) { return _mm256_castps_si256(a); }
CL_INLINE VF abs(VF a) { return _mm256_and_ps(a, as_f(set1_i(0x7fffffff))); }
CL_INLINE VI to_int(VF a) { return _mm256_cvtps_epi32(a); }
CL_INLINE VF from_int(VI a) { return _mm256_cvtepi32_ps(a); }
CL_INLINE VI add_i(VI a, VI b) { return _mm256_add_epi32(a, b); }
CL_INLINE VI and_i(VI a, VI b) { return _mm256_and_si256(a, b); }
CL_INLINE VI xor_i(VI a, VI b) { return _mm256_xor_si256(a, b); }
CL_INLINE VI shift_right(VI a, int n) { return _mm256_srli_epi32(a, n); }
CL_INLINE VI shift_left(VI a, int n) { return _mm256_slli_epi32(a, n); }
CL_INLINE VF scale2(VF a, VF n) {
  return mul(a, as_f(shift_left(add_i(to_int(vmax(n, set1(-126.0f))), set1_i(127)), 23)));
}
CL_INLINE VI lane_index() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
CL_INLINE VF select_range(int lo, int hi, VF x, VF y) {
  const VI i = lane_index();
  const VI m = _mm256_and_si256(_mm256_cmpgt_epi32(i, set1_i(lo - 1)), _mm256_cmpgt_epi32(set1_i(hi), i));
  return _mm256_blendv_ps(y, x, as_f(m));
}
CL_INLINE unsigned nan_lanes(VF a) { return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q))); }
CL_INLINE unsigned equal_lanes(VF a, VF b) { return unsigned(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ))); }
CL_INLINE float reduce_add(VF a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
CL_INLINE float reduce_max(VF a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}
CL_INLINE VI max_i(VI a, VI b) { return _mm256_max_epi32(a, b); }
CL_INLINE int32_t reduce_max_i(VI a) {
  __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
CL_INLINE int32_t reduce_add_i(VI a) {
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}
CL_INLINE void store_bytes(int8_t* p, VI a) {
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
  _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(halves, halves));
}
CL_INLINE VF load(const bf16* p) {
  return as_f(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
CL_INLINE void store(bf16* p, VF x) {
  const VI u = as_i(x);
  const VI even = add_i(and_i(shift_right(u, 16), set1_i(1)), set1_i(0x7fff));
  const VI quiet = _mm256_or_si256(shift_right(u, 16), set1_i(0x40));
  const VI r = _mm256_blendv_epi8(shift_right(add_i(u, even), 16), quiet, as_i(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  const VI packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
  _mm_storeu_si128((__m128i*)p, _mm256_castsi256_si128(packed));
}
CL_INLINE VI load_lanes(const void* p, int n) {
  return _mm256_maskload_epi32((const int*)p, _mm256_cmpgt_epi32(set1_i(n), lane_index()));
}
CL_INLINE VI zip_lo16(VI a, VI b) { return _mm256_unpacklo_epi16(a, b); }
CL_INLINE VI zip_hi16(VI a, VI b) { return _mm256_unpackhi_epi16(a, b); }
CL_INLINE void unzip_lanes(VF lo, VF hi, VF* first, VF* second) {
  *first = _mm256_permute2f128_ps(lo, hi, 0x20);
  *second = _mm256_permute2f128_ps(lo, hi, 0x31);
}

#else
#error "AVX2 with FMA is the least that these kernels are written for"
#endif

CL_INLINE VF broadcast(const float* p) { return set1(*p); }
CL_INLINE VI broadcast_i(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return set1_i(x);
}

// acc + a[1]*b[1] + a[0]*b[0] in each lane, a and b two bf16 in a dword.
CL_INLINE VF mac_bf16(VF acc, VI a, VI b) {
#if defined(__AVX512BF16__) && defined(__AVX512F__)
  return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b);
#else
  const VI high = set1_i(int32_t(0xffff0000u));
  acc = fma(as_f(and_i(a, high)), as_f(and_i(b, high)), acc);
  return fma(as_f(shift_left(a, 16)), as_f(shift_left(b, 16)), acc);
#endif
}

// acc + sum of four products u8 (in u) times s8 (in s) in each lane, exact.
CL_INLINE VI mac_u8s8(VI acc, VI u, VI s) {
#if defined(__AVX512VNNI__) && defined(__AVX512F__)
  return _mm512_dpbusd_epi32(acc, u, s);
#elif defined(__AVX512F__)
  const VI low = set1_i(0x00ff00ff);
  const VI even = _mm512_madd_epi16(and_i(u, low), _mm512_srai_epi16(_mm512_slli_epi16(s, 8), 8));
  const VI odd = _mm512_madd_epi16(_mm512_srli_epi16(u, 8), _mm512_srai_epi16(s, 8));
  return add_i(acc, add_i(even, odd));
#elif defined(__AVXVNNI__)
  return _mm256_dpbusd_avx_epi32(acc, u, s);
#else
  const VI low = set1_i(0x00ff00ff);
  const VI even = _mm256_madd_epi16(and_i(u, low), _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
  const VI odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
  return add_i(acc, add_i(even, odd));
#endif
}

// 2^x for x <= 0, at least 2^-127. NaN stays NaN. Relative error below 3e-7: Cephes' exp2f polynomial.
CL_INLINE VF exp2_neg(VF x) {
  x = vmax(set1(-127.0f), x);  // a NaN in the second operand is what comes out
  const VF n = round_even(x);
  const VF r = sub(x, n);
  VF p = set1(1.535336188319500e-4f);
  p = fma(p, r, set1(1.339887440266574e-3f));
  p = fma(p, r, set1(9.618437357674640e-3f));
  p = fma(p, r, set1(5.550332471162809e-2f));
  p = fma(p, r, set1(2.402264791363012e-1f));
  p = fma(p, r, set1(6.931472028550421e-1f));
  p = fma(p, r, set1(1.0f));
  return scale2(p, n);
}

CL_INLINE VF silu(VF x) {
  const VF e = exp2_neg(mul(abs(x), set1(-1.44269504089f)));  // exp(-|x|)
  const VF s = div(set1(1.0f), add(set1(1.0f), e));  // sigmoid(|x|)
#if defined(__AVX512F__)
  const VF sig = _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, zero(), _CMP_LT_OQ), s, mul(e, s));
#else
  const VF sig = _mm256_blendv_ps(s, mul(e, s), _mm256_cmp_ps(x, zero(), _CMP_LT_OQ));
#endif
  return mul(x, sig);
}

CL_INLINE bf16 to_bf16(float x) {
  bf16 out[W];
  store(out, set1(x));
  return out[0];
}

template <class T>
CL_INLINE void store_one(T* p, float x);
template <>
CL_INLINE void store_one<float>(float* p, float x) { *p = x; }
template <>
CL_INLINE void store_one<bf16>(bf16* p, float x) { *p = to_bf16(x); }

}  // namespace cl
