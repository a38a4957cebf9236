// AVX-512 and VNNI as far as the kernels use them, in terms of AVX2 and plain loops: lets a machine without them check what
// the kernels compute with them. Included before everything else by test_emulated.py.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace emulated {

struct Halves { __m256i low, high; };
inline Halves halves(__m512i v) { Halves h; std::memcpy(&h, &v, sizeof h); return h; }
inline __m512i whole(__m256i low, __m256i high) { __m512i v; Halves h{low, high}; std::memcpy(&v, &h, sizeof v); return v; }
template <class F> __m512i each(__m512i a, __m512i b, F f) {
  Halves x = halves(a), y = halves(b);
  return whole(f(x.low, y.low), f(x.high, y.high));
}

inline __m512i add16(__m512i a, __m512i b) { return each(a, b, [](__m256i x, __m256i y) { return _mm256_add_epi16(x, y); }); }
inline __m512i maddubs(__m512i a, __m512i b) { return each(a, b, [](__m256i x, __m256i y) { return _mm256_maddubs_epi16(x, y); }); }
inline __m512i madd(__m512i a, __m512i b) { return each(a, b, [](__m256i x, __m256i y) { return _mm256_madd_epi16(x, y); }); }
inline __m512i abs8(__m512i a) { return each(a, a, [](__m256i x, __m256i) { return _mm256_abs_epi8(x); }); }
inline __m512i set16(short x) { return whole(_mm256_set1_epi16(x), _mm256_set1_epi16(x)); }
inline __m512i zero() { return set16(0); }

inline __m512 fmadd(__m512 a, __m512 b, __m512 c) {
  float x[16], y[16], z[16];
  std::memcpy(x, &a, 64), std::memcpy(y, &b, 64), std::memcpy(z, &c, 64);
  for (int i = 0; i < 16; i += 8)
    _mm256_storeu_ps(z + i, _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), _mm256_loadu_ps(z + i)));
  std::memcpy(&c, z, 64);
  return c;
}
inline __m512 from_half(__m256i h) {
  float out[16];
  _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm256_castsi256_si128(h)));
  _mm256_storeu_ps(out + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
  __m512 v; std::memcpy(&v, out, 64);
  return v;
}
inline __m256i to_half(__m512 v) {
  float in[16]; std::memcpy(in, &v, 64);
  return _mm256_set_m128i(_mm256_cvtps_ph(_mm256_loadu_ps(in + 8), 0), _mm256_cvtps_ph(_mm256_loadu_ps(in), 0));
}
inline __m512i dpbusd(__m512i acc, __m512i a, __m512i b) {
  int32_t sums[16]; uint8_t x[64]; int8_t y[64];
  std::memcpy(sums, &acc, 64), std::memcpy(x, &a, 64), std::memcpy(y, &b, 64);
  for (int i = 0; i < 64; i++) sums[i / 4] += x[i] * y[i];
  std::memcpy(&acc, sums, 64);
  return acc;
}
inline uint64_t signs(__m512i v) {
  int8_t x[64]; std::memcpy(x, &v, 64);
  uint64_t mask = 0;
  for (int i = 0; i < 64; i++) mask |= (uint64_t)(x[i] < 0) << i;
  return mask;
}
inline __m512i masked_sub(__m512i keep, uint64_t mask, __m512i a, __m512i b) {
  int8_t k[64], x[64], y[64];
  std::memcpy(k, &keep, 64), std::memcpy(x, &a, 64), std::memcpy(y, &b, 64);
  for (int i = 0; i < 64; i++) k[i] = mask >> i & 1 ? (int8_t)(x[i] - y[i]) : k[i];
  std::memcpy(&keep, k, 64);
  return keep;
}
inline __m128i low_bytes(__m512i v) {
  int32_t x[16]; std::memcpy(x, &v, 64);
  int8_t out[16];
  for (int i = 0; i < 16; i++) out[i] = (int8_t)x[i];
  __m128i r; std::memcpy(&r, out, 16);
  return r;
}

// Tiles: what the instructions do, byte by byte. One set a thread, as in the processor.
struct Tiles {
  uint8_t rows[8], data[8][16][64];
  uint16_t row_bytes[8];
};
inline thread_local Tiles tiles{};
template <class Config> void shape(const Config& config) {
  for (int t = 0; t < 8; t++) tiles.rows[t] = config.rows[t], tiles.row_bytes[t] = config.row_bytes[t];
}
inline void forget() { tiles = {}; }
inline void zero_tile(int t) { std::memset(tiles.data[t], 0, sizeof tiles.data[t]); }
inline void load_tile(int t, const void* from, int64_t stride) {
  for (int r = 0; r < tiles.rows[t]; r++) std::memcpy(tiles.data[t][r], (const char*)from + r * stride, tiles.row_bytes[t]);
}
inline void store_tile(int t, void* to, int64_t stride) {
  for (int r = 0; r < tiles.rows[t]; r++) std::memcpy((char*)to + r * stride, tiles.data[t][r], tiles.row_bytes[t]);
}
template <class B> void dot_tiles(int c, int a, int b) {
  for (int m = 0; m < tiles.rows[c]; m++)
    for (int k = 0; k < tiles.row_bytes[a] / 4; k++)
      for (int n = 0; n < tiles.row_bytes[c] / 4; n++) {
        int32_t sum; std::memcpy(&sum, &tiles.data[c][m][4 * n], 4);
        for (int i = 0; i < 4; i++) sum += (int8_t)tiles.data[a][m][4 * k + i] * (int)(B)tiles.data[b][k][4 * n + i];
        std::memcpy(&tiles.data[c][m][4 * n], &sum, 4);
      }
}

}  // namespace emulated

#define _mm512_add_epi16 emulated::add16
#define _mm512_maddubs_epi16 emulated::maddubs
#define _mm512_madd_epi16 emulated::madd
#define _mm512_abs_epi8 emulated::abs8
#define _mm512_set1_epi16 emulated::set16
#define _mm512_setzero_si512 emulated::zero
#define _mm512_fmadd_ps emulated::fmadd
#define _mm512_cvtph_ps emulated::from_half
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(v, rounding) emulated::to_half(v)
#define _mm512_dpbusd_epi32 emulated::dpbusd
#define _mm512_movepi8_mask emulated::signs
#define _mm512_mask_sub_epi8 emulated::masked_sub
#define _mm512_cvtepi32_epi8 emulated::low_bytes

#define RAMET_EMULATED 1
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#if defined(EMULATE_VNNI) || defined(EMULATE_AMX)
#define __AVX512VNNI__ 1
#endif
#ifdef EMULATE_AMX
#define __AMX_INT8__ 1
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbsud
#define _tile_release emulated::forget
#define _tile_zero emulated::zero_tile
#define _tile_loadd emulated::load_tile
#define _tile_stored emulated::store_tile
#define _tile_dpbssd emulated::dot_tiles<int8_t>
#define _tile_dpbsud emulated::dot_tiles<uint8_t>
#endif
