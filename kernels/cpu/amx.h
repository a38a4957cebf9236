// Matrix tiles of AMX: the sums of one block of 32 inputs for up to 16 rows and 16 outputs at once.
//
// Sums are whole numbers and the same as those of `dot_small` and `dot_wide`; how they are scaled and added up is left to the
// formats, so a row has the same bits whether tiles computed it or vectors.
#pragma once
#include "matrix.h"

#if defined(__AMX_INT8__) && defined(RAMET_VNNI)
#define RAMET_AMX 1

#include <sys/syscall.h>
#include <unistd.h>

namespace ramet {

constexpr int TILE_ROWS = 16;

// The system saves tiles on a context switch only for processes that asked for it. False: they must not be used.
inline bool request_tiles() {
#if defined(RAMET_EMULATED)
  return true;
#else
  constexpr int REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#endif
}

struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0: sums (rows, 16 numbers); 1: activations (rows, 32 bytes); 2: weights (8 times 4 inputs, 16 outputs).
inline void shape_tiles(int rows) {
  TileConfig config;
  config.row_bytes[0] = 64, config.row_bytes[1] = BLOCK, config.row_bytes[2] = 64;
  config.rows[0] = config.rows[1] = (uint8_t)rows, config.rows[2] = BLOCK / 4;
#if defined(RAMET_EMULATED)
  emulated::shape(config);
#else
  asm volatile("ldtilecfg %0" ::"m"(config));  // GCC 12's intrinsic does not say that it reads all 64 bytes
#endif
}

inline void release_tiles() { _tile_release(); }

// sums: (rows, 16) of one block. q: rows `stride` apart; w: 8 vectors of bytes, signed or not.
template <bool SIGNED> void tile_sums(const int8_t* q, int64_t stride, const uint8_t* w, int32_t* sums) {
  asm volatile("" ::"r"(q), "r"(w) : "memory");  // nor do GCC's loads of tiles say what they read: all stores before this line
  _tile_zero(0);
  _tile_loadd(1, q, stride);
  _tile_loadd(2, w, 64);
  if constexpr (SIGNED) _tile_dpbssd(0, 1, 2);
  else _tile_dpbsud(0, 1, 2);
  _tile_stored(0, sums, 64);
}

}  // namespace ramet
#endif
