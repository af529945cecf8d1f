// What this machine can do at most, for benchmarks to divide by: memory read, and products on registers alone.
#include "abi.h"
#include "amx.h"
#include "pool.h"
#include "units.h"

namespace cl {
namespace {

constexpr int64_t kSlice = 1 << 16;
constexpr int64_t kAhead = 1024;  // asked for so far ahead: 43 GB/s instead of 31 on a 2-core Xeon
constexpr int kSums = 12;

// Keeps results that nobody reads.
inline void use(VI x) { asm volatile("" ::"v"(x)); }

void read_slice(const char* p) {
  VI a = zero_i(), b = zero_i(), c = zero_i(), d = zero_i();
  for (int64_t i = 0; i < kSlice; i += 16 * W) {
    for (int64_t line = i; line < i + 16 * W; line += 64) _mm_prefetch(p + kAhead + line, _MM_HINT_T0);
    a = add_i(a, load_i(p + i));
    b = add_i(b, load_i(p + i + 4 * W));
    c = add_i(c, load_i(p + i + 8 * W));
    d = add_i(d, load_i(p + i + 12 * W));
  }
  use(add_i(add_i(a, b), add_i(c, d)));
}

template <class Units>
void multiply_registers(int64_t rounds) {
  VF sums[kSums];
  for (VF& s : sums) s = zero();
  VI x = set1_i(0x3f803f80);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x));
    for (VF& s : sums) s = Units::mac(s, x, x);
  }
  for (VF s : sums) use(as_i(s));
}

#if defined(__AMX_TILE__)
template <bool IsBytes>
void multiply_tiles(int64_t rounds) {
  TileConfig c;
  for (int t = 0; t < 8; ++t) {
    c.row_bytes[t] = 64;
    c.rows[t] = 16;
  }
  load_config(c);  // all tiles are zero now
  for (int64_t i = 0; i < rounds; ++i) {
    if (IsBytes) {
      _tile_dpbssd(0, 4, 6);
      _tile_dpbssd(1, 4, 7);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
    } else {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_release();
}
#else
void multiply_bytes(int64_t rounds) {
  VI sums[kSums];
  for (VI& s : sums) s = zero_i();
  VI x = set1_i(0x01010101);
  for (int64_t i = 0; i < rounds; ++i) {
    asm volatile("" : "+v"(x));
    for (VI& s : sums) s = mac_u8s8(s, x, x);
  }
  for (VI s : sums) use(s);
}
#endif

}  // namespace
}  // namespace cl

// Reads all of `bytes`, a multiple of 64 KiB, once.
CL_EXPORT void chairlift_read_memory(void* pool, const void* p, int64_t bytes) {
  auto body = [&](int64_t slice, int) { cl::read_slice(static_cast<const char*>(p) + slice * cl::kSlice); };
  static_cast<cl::Pool*>(pool)->each(bytes / cl::kSlice, body);
}

// `rounds` of independent products on every thread, kind 0 bf16, 1 float, 2 bytes. Operations (a product and a sum are
// two) of one thread's.
CL_EXPORT double chairlift_multiply_registers(void* pool, int32_t kind, int64_t rounds) {
  auto body = [&](int64_t, int) {
    if (kind == 1) return cl::multiply_registers<cl::FloatUnits>(rounds);
#if defined(__AMX_TILE__)
    if (kind == 0) return cl::multiply_tiles<false>(rounds);
    return cl::multiply_tiles<true>(rounds);
#else
    if (kind == 0) return cl::multiply_registers<cl::Bf16Units>(rounds);
    return cl::multiply_bytes(rounds);
#endif
  };
  auto* p = static_cast<cl::Pool*>(pool);
  p->each(p->num_threads(), body);
  const int per_unit = kind == 1 ? 1 : kind == 0 ? 2 : 4;
#if defined(__AMX_TILE__)
  if (kind != 1) return double(rounds) * 4 * 2 * 16 * 16 * 16 * per_unit;
#endif
  return double(rounds) * cl::kSums * cl::W * 2 * per_unit;
}
