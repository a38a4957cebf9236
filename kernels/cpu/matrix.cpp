#include "matrix.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ramet {

void Free::operator()(void* p) const { std::free(p); }

void* allocate(size_t bytes) {
  constexpr size_t huge = 2u << 20;
  size_t alignment = bytes >= 2 * huge ? huge : 64;
  void* p = std::aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
  if (!p) throw std::bad_alloc();
#if defined(__linux__)
  if (alignment == huge) madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return p;
}

namespace {

// Bytes of a block in a GGML file and in a tile (for all VL outputs), and blocks that belong together.
struct Layout { int file_bytes, tile_bytes, blocks; };

Layout layout(Kind kind) {
  switch (kind) {
    case Kind::Q8_0: return {34, VL * 34, 1};
    case Kind::Q4_0: return {18, VL * 18, 1};
    case Kind::Q4_1: return {20, VL * 20, 1};
    case Kind::Q4_K: return {144, VL * (4 + SUPER * 18), SUPER};
    case Kind::Q6_K: return {210, VL * (2 + SUPER * 26), SUPER};
    default: return {0, 0, 1};
  }
}

void put_half(uint8_t* base, int lane, const uint8_t* from) { std::memcpy(base + 2 * lane, from, 2); }

// Puts weight i (of 32) of a lane where the vectors of a block have it, as 8, 4 or 2 bits.
void put8(uint8_t* q, int lane, int i, uint8_t value) { q[i / 4 * VB + 4 * lane + i % 4] = value; }
void put4(uint8_t* q, int lane, int i, uint8_t value) { q[i % 16 / 4 * VB + 4 * lane + i % 4] |= value << (i / 16 * 4); }
void put2(uint8_t* q, int lane, int i, uint8_t value) { q[i % 8 / 4 * VB + 4 * lane + i % 4] |= value << (i / 8 * 2); }
int get8(const uint8_t* q, int lane, int i) { return q[i / 4 * VB + 4 * lane + i % 4]; }
int get4(const uint8_t* q, int lane, int i) { return q[i % 16 / 4 * VB + 4 * lane + i % 4] >> (i / 16 * 4) & 15; }
int get2(const uint8_t* q, int lane, int i) { return q[i % 8 / 4 * VB + 4 * lane + i % 4] >> (i / 8 * 2) & 3; }

int nibble(const uint8_t* q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

// One block (or super-block) of one output, from the file's form at `from` into lane `lane` of the tile's at `to`.
void pack_block(Kind kind, uint8_t* to, int lane, const uint8_t* from) {
  switch (kind) {
    case Kind::Q8_0:
      put_half(to, lane, from);
      for (int i = 0; i < BLOCK; i++) put8(to + 2 * VL, lane, i, from[2 + i]);
      break;
    case Kind::Q4_0:
      put_half(to, lane, from);
      for (int i = 0; i < BLOCK; i++) put4(to + 2 * VL, lane, i, nibble(from + 2, i));
      break;
    case Kind::Q4_1:
      put_half(to, lane, from);
      put_half(to + 2 * VL, lane, from + 2);
      for (int i = 0; i < BLOCK; i++) put4(to + 4 * VL, lane, i, nibble(from + 4, i));
      break;
    case Kind::Q4_K: {
      put_half(to, lane, from);
      put_half(to + 2 * VL, lane, from + 2);
      const uint8_t* s = from + 4;
      const uint8_t* q = from + 16;
      for (int b = 0; b < SUPER; b++) {
        uint8_t* block = to + 4 * VL + b * 18 * VL;
        block[lane] = b < 4 ? s[b] & 63 : (s[b + 4] & 15) | (s[b - 4] >> 6) << 4;
        block[VL + lane] = b < 4 ? s[b + 4] & 63 : s[b + 4] >> 4 | (s[b] >> 6) << 4;
        for (int i = 0; i < BLOCK; i++) put4(block + 2 * VL, lane, i, q[b / 2 * 32 + i] >> (b % 2 * 4) & 15);
      }
      break;
    }
    case Kind::Q6_K: {
      put_half(to, lane, from + 208);
      for (int b = 0; b < SUPER; b++) {
        uint8_t* block = to + 2 * VL + b * 26 * VL;
        const uint8_t* low = from + b / 4 * 64 + b % 2 * 32;
        const uint8_t* high = from + 128 + b / 4 * 32;
        block[lane] = from[192 + 2 * b];
        block[VL + lane] = from[193 + 2 * b];
        for (int i = 0; i < BLOCK; i++) {
          put4(block + 2 * VL, lane, i, low[i] >> (b % 4 / 2 * 4) & 15);
          put2(block + 18 * VL, lane, i, high[i] >> (b % 4 * 2) & 3);
        }
      }
      break;
    }
    default: break;
  }
}

float half_at(const uint8_t* base, int lane) { return half_to_float(load_raw<half>(base + 2 * lane)); }

void unpack_block(Kind kind, const uint8_t* from, int lane, float* out) {
  float d = half_at(from, lane);
  switch (kind) {
    case Kind::Q8_0:
      for (int i = 0; i < BLOCK; i++) out[i] = d * (int8_t)get8(from + 2 * VL, lane, i);
      break;
    case Kind::Q4_0:
      for (int i = 0; i < BLOCK; i++) out[i] = d * (get4(from + 2 * VL, lane, i) - 8);
      break;
    case Kind::Q4_1:
      for (int i = 0; i < BLOCK; i++) out[i] = d * get4(from + 4 * VL, lane, i) + half_at(from + 2 * VL, lane);
      break;
    case Kind::Q4_K:
      for (int b = 0; b < SUPER; b++) {
        const uint8_t* block = from + 4 * VL + b * 18 * VL;
        float scale = d * block[lane], offset = half_at(from + 2 * VL, lane) * block[VL + lane];
        for (int i = 0; i < BLOCK; i++) out[b * BLOCK + i] = scale * get4(block + 2 * VL, lane, i) - offset;
      }
      break;
    case Kind::Q6_K:
      for (int b = 0; b < SUPER; b++) {
        const uint8_t* block = from + 2 * VL + b * 26 * VL;
        for (int i = 0; i < BLOCK; i++) {
          int q = (get4(block + 2 * VL, lane, i) | get2(block + 18 * VL, lane, i) << 4) - 32;
          out[b * BLOCK + i] = d * (int8_t)block[i / 16 * VL + lane] * q;
        }
      }
      break;
    default: break;
  }
}

template <class T> void pack_plain(uint8_t* tile, const T* rows, int inputs, int outputs) {
  for (int k = 0; k < inputs; k++, tile += 2 * VL * sizeof(T))
    for (int lane = 0; lane < outputs; lane++) std::memcpy(tile + lane * sizeof(T), rows + (size_t)lane * inputs + k, sizeof(T));
}

}  // namespace

std::unique_ptr<Matrix> Matrix::pack(Pool& pool, Kind kind, int outputs, int inputs, const void* rows) {
  auto m = std::make_unique<Matrix>();
  m->kind = kind, m->outputs = outputs, m->inputs = inputs;
  Layout at = layout(kind);
  int width = tile_outputs(kind), groups = inputs / BLOCK / at.blocks;
  size_t number = kind == Kind::F32 ? 4 : 2;
  m->tile_bytes = quantised(kind) ? (size_t)groups * at.tile_bytes : (size_t)inputs * width * number;
  m->data = buffer<uint8_t>(m->bytes());
  pool.run_ranges(m->tiles(), 4, [&](int begin, int end, int) {
    for (int t = begin; t < end; t++) {
      uint8_t* tile = m->data.get() + (size_t)t * m->tile_bytes;
      std::memset(tile, 0, m->tile_bytes);  // lanes beyond the last output weigh nothing
      int first = t * width, count = outputs - first < width ? outputs - first : width;
      if (kind == Kind::F32) pack_plain(tile, (const float*)rows + (size_t)first * inputs, inputs, count);
      else if (!quantised(kind)) pack_plain(tile, (const uint16_t*)rows + (size_t)first * inputs, inputs, count);
      else
        for (int lane = 0; lane < count; lane++)
          for (int g = 0; g < groups; g++)
            pack_block(kind, tile + (size_t)g * at.tile_bytes, lane,
                       (const uint8_t*)rows + ((size_t)(first + lane) * groups + g) * at.file_bytes);
    }
  });
  return m;
}

void Matrix::row(int output, float* out) const {
  int width = tile_outputs(kind), lane = output % width;
  const uint8_t* from = tile(output / width);
  if (quantised(kind)) {
    Layout at = layout(kind);
    for (int g = 0; g < inputs / BLOCK / at.blocks; g++)
      unpack_block(kind, from + (size_t)g * at.tile_bytes, lane, out + g * at.blocks * BLOCK);
    return;
  }
  for (int k = 0; k < inputs; k++) {
    size_t at = (size_t)k * width + lane;
    out[k] = kind == Kind::F32 ? ((const float*)from)[at] : kind == Kind::F16 ? to_float(((const half*)from)[at])
                                                                              : to_float(((const bfloat*)from)[at]);
  }
}

}  // namespace ramet
