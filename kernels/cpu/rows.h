// What happens to one row between the products: norms, rotation of heads, the gate, the cache.
#pragma once
#include <cmath>

#include "attention.h"

namespace ramet {

// out = x / sqrt(mean(x^2) + eps) * weight. In place is fine.
inline void rms_norm(const float* x, const float* weight, float eps, int size, float* out) {
  vf squares = vf{};
  int i = 0;
  for (; i + VL <= size; i += VL) squares = fma(load(x + i), load(x + i), squares);
  float total = sum(squares);
  for (; i < size; i++) total += x[i] * x[i];
  float scale = 1.f / std::sqrt(total / size + eps);
  for (i = 0; i + VL <= size; i += VL) store(out + i, load(x + i) * scale * load(weight + i));
  for (; i < size; i++) out[i] = x[i] * scale * weight[i];
}

// Rotates the first 2 half numbers of a head, number i against number i + half.
inline void rotate(float* x, const float* cosine, const float* sine, int half) {
  int i = 0;
  for (; i + VL <= half; i += VL) {
    vf a = load(x + i), b = load(x + half + i), c = load(cosine + i), s = load(sine + i);
    store(x + i, fma(a, c, -(b * s)));
    store(x + half + i, fma(b, c, a * s));
  }
  for (; i < half; i++) {
    float a = x[i], b = x[half + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[half + i] = b * cosine[i] + a * sine[i];
  }
}

inline void silu_mul(const float* gate, const float* up, int size, float* out) {
  int i = 0;
  for (; i + VL <= size; i += VL) store(out + i, silu(load(gate + i)) * load(up + i));
  for (; i < size; i++) out[i] = silu(splat(gate[i]))[0] * up[i];
}

template <class T> void convert(const float* x, int size, T* out) {
  int i = 0;
  for (; i + VL <= size; i += VL) store(out + i, load(x + i));
  for (; i < size; i++) store(out + i, x[i]);
}

// One row's keys or values into the cache.
inline void keep(Cache type, const float* x, int size, void* pool, int64_t slot) {
  if (type == Cache::F32) convert(x, size, (float*)pool + slot * size);
  if (type == Cache::F16) convert(x, size, (half*)pool + slot * size);
  if (type == Cache::BF16) convert(x, size, (bfloat*)pool + slot * size);
}

inline size_t number_bytes(Cache type) { return type == Cache::F32 ? 4 : 2; }

}  // namespace ramet
