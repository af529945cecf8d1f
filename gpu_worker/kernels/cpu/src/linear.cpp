#include "linear.h"

#include "outputs.h"
#include "panel_tiles.h"
#include "panel_vectors.h"

namespace cl {
namespace {

#if CL_HAS_TILES
constexpr int kBlockRows = kAmxRows;
constexpr int kChunkRows = 256;  // of an item: their inputs stay in the second-level cache while panels pass
#else
constexpr int kBlockRows = kVectorRows;
constexpr int kChunkRows = 240;
#endif

void multiply_on_vectors(const Panels& panels, const Finish& finish, int64_t begin, int64_t end) {
  alignas(64) float sums[kVectorRows * kSumStride];
  for (int64_t row = begin; row < end;) {
    const int rows = multiply_some_rows(panels, row, int(end - row < kVectorRows ? end - row : kVectorRows), sums);
    finish.run(row, rows, sums);
    row += rows;
  }
}

#if CL_HAS_TILES
// How many of the rows.
int64_t multiply_on_tiles(const Panels& panels, const Finish& finish, int64_t begin, int64_t end) {
  const int64_t rows = PanelTiles::num_rows(panels.linear.kind, end - begin);
  if (rows == 0) return 0;
  alignas(64) float sums[kChunkRows * kSumStride];
  PanelTiles(panels, finish, begin, begin + rows, sums).run();
  return rows;
}
#endif

void multiply_pair(const Linear& linear, const Inputs& in, const Outputs& out, int pair, int64_t begin, int64_t end) {
  const Panels panels(linear, in, pair);
  const Finish finish(linear, out, panels.first, panels.count);
#if CL_HAS_TILES
  begin += multiply_on_tiles(panels, finish, begin, end);
#endif
  multiply_on_vectors(panels, finish, begin, end);
}

}  // namespace

void run_linear(Pool* pool, const Linear& linear, const Inputs& in, int64_t num_rows, const Outputs& out) {
  const int pairs = (num_panels(linear) + 1) / 2;
  const int64_t chunks = (num_rows + kChunkRows - 1) / kChunkRows;
  // Equal chunks: each passes over all weights, however few its rows are.
  const int64_t chunk = ((num_rows + chunks - 1) / chunks + kBlockRows - 1) / kBlockRows * kBlockRows;
  auto body = [&](int64_t item, int) {
    const int64_t begin = item / pairs * chunk;
    const int64_t end = begin + chunk < num_rows ? begin + chunk : num_rows;
    if (begin < end) multiply_pair(linear, in, out, int(item % pairs), begin, end);
  };
  pool->each(chunks * pairs, body);
}

}  // namespace cl

CL_EXPORT int64_t chairlift_panel_bytes(const cl::Linear* linear) {
  return cl::panel_bytes(*linear) * cl::num_panels(*linear);
}
CL_EXPORT void chairlift_linear(void* pool, const cl::Linear* linear, const cl::Inputs* in, int64_t num_rows,
                                const cl::Outputs* out) {
  cl::run_linear(static_cast<cl::Pool*>(pool), *linear, *in, num_rows, *out);
}
