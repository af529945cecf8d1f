// Tile registers: their shapes, and the ordering that the compiler's own intrinsics do not promise.
#pragma once

#if defined(__AMX_TILE__)

#include <immintrin.h>

#include <cstdint>

namespace cl {

// As LDTILECFG reads it.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// GCC's tile loads name no memory: without this, stores before one may be moved behind it or dropped.
__attribute__((always_inline)) inline void finish_stores() { asm volatile("" ::: "memory"); }

__attribute__((always_inline)) inline void load_config(const TileConfig& config) {
  asm volatile("" ::"r"(&config) : "memory");
  _tile_loadconfig(&config);
}

}  // namespace cl

#endif
