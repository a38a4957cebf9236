// Weights as the kernels read them.
//
// A matrix is cut into tiles of a few outputs (rows of the weight), and a tile runs along the inputs with its outputs side by
// side: one output to a lane, so that a product needs no sums across lanes and one stream of memory is read from front to end.
// Quantised formats keep the file's numbers bit for bit; only their order changes. A block is 32 inputs:
//
//   Q8_0   d: half[VL]                 32 weights: 8 vectors, vector j = inputs 4j..4j+3 of each output
//   Q4_0   d: half[VL]                 4 vectors, vector j = inputs 4j.. in the low nibbles, 16+4j.. in the high
//   Q4_1   d, m: half[VL]              as Q4_0
//   Q4_K   every 8 blocks d, dmin: half[VL]; then a block: scale, offset: uint8[VL], nibbles as Q4_0
//   Q6_K   every 8 blocks d: half[VL]; then a block: two int8[VL] scales (16 inputs each), nibbles, 2 vectors of 2-bit parts
//   F32, F16, BF16                     a tile has 2 VL outputs; input after input, 2 VL numbers each
#pragma once
#include <cstddef>
#include <memory>

#include "pool.h"
#include "simd.h"

namespace ramet {

enum class Kind : int { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K };

constexpr int BLOCK = 32;        // inputs that share a scale, in weights and in activations
constexpr int SUPER = 8;         // blocks of a K-quant that share their outer scale
constexpr int VB = VL * 4;       // bytes of a vector

inline bool quantised(Kind kind) { return kind >= Kind::Q8_0; }
inline int tile_outputs(Kind kind) { return quantised(kind) ? VL : 2 * VL; }

// Memory on cache lines and, where the system offers it, on huge pages.
struct Free { void operator()(void* p) const; };
template <class T> using Buffer = std::unique_ptr<T[], Free>;
void* allocate(size_t bytes);
template <class T> Buffer<T> buffer(size_t count) { return Buffer<T>((T*)allocate(count * sizeof(T))); }

struct Matrix {
  Kind kind;
  int outputs, inputs;
  size_t tile_bytes;
  Buffer<uint8_t> data;

  int tiles() const { return (outputs + tile_outputs(kind) - 1) / tile_outputs(kind); }
  const uint8_t* tile(int i) const { return data.get() + (size_t)i * tile_bytes; }
  size_t bytes() const { return (size_t)tiles() * tile_bytes; }

  // From rows as files hold them: plain numbers, or GGML blocks.
  static std::unique_ptr<Matrix> pack(Pool& pool, Kind kind, int outputs, int inputs, const void* rows);
  // One output's weights as floats: a row of an embedding table.
  void row(int output, float* out) const;
};

}  // namespace ramet
