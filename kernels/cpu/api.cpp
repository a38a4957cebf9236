// What Python calls: plain C, shapes and types checked on the other side. Tensors are contiguous. What can fail returns a null
// pointer instead of an object, or says what was wrong; a null message means success.
#include "amx.h"
#include "decoder.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace ramet;

namespace {

constexpr int GRAIN = 4;  // rows of a piece of work

// What work() returns; without memory or threads `failed`.
template <class Result, class Work> Result guarded(Result failed, Work&& work) {
  try {
    return work();
  } catch (const std::exception&) {
    return failed;
  }
}
constexpr const char* NO_MEMORY = "not enough memory";

template <class Work> void over_rows(Pool* pool, int rows, Work&& work) {
  Pool::Turn turn(*pool);
  pool->run_ranges(rows, GRAIN, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) work((int64_t)r);
  });
}

}  // namespace

API int ramet_lanes() { return VL; }

API Pool* ramet_pool_new(int threads) {
#if defined(RAMET_AMX)
  if (!request_tiles()) return nullptr;
#endif
  return guarded<Pool*>(nullptr, [&] { return new Pool(threads); });
}
API void ramet_pool_free(Pool* pool) { delete pool; }

API Matrix* ramet_matrix_new(Pool* pool, int kind, int outputs, int inputs, const void* rows) {
  Pool::Turn turn(*pool);
  return guarded<Matrix*>(nullptr, [&] { return Matrix::pack(*pool, (Kind)kind, outputs, inputs, rows).release(); });
}
API void ramet_matrix_free(Matrix* matrix) { delete matrix; }
API int64_t ramet_matrix_bytes(const Matrix* matrix) { return (int64_t)matrix->bytes(); }
API void ramet_matrix_rows(Pool* pool, const Matrix* matrix, int count, const int32_t* ids, float* out) {
  over_rows(pool, count, [&](int64_t r) { matrix->row(ids[r], out + r * matrix->inputs); });
}

// Whether this library runs here and computes: products of every kind that differs by instruction set, against plain sums.
API int ramet_probe() {
#if defined(RAMET_AMX)
  if (!request_tiles()) return 0;
#endif
  return guarded<int>(0, [] {
    Pool pool(1);
    constexpr int N = 2 * VL, K = 256, ROWS = 19;
    static float x[ROWS * K], y[ROWS * N], w[K];
    static int8_t q[ROWS * K];
    static BlockScale scales[ROWS * K / BLOCK];
    static uint8_t file[N * K * 2];
    for (int i = 0; i < ROWS * K; i++) x[i] = (float)((i * 37) % 255 - 127);
    for (int r = 0; r < ROWS; r++) quantise(x + r * K, K, q + r * K, scales + r * K / BLOCK);
    for (int kind = (int)Kind::F16; kind <= (int)Kind::Q6_K; kind++) {
      for (size_t i = 0; i < sizeof file; i++) file[i] = (uint8_t)(i * 89 >> 2) & 0x3f;  // small scales in any format
      auto m = Matrix::pack(pool, (Kind)kind, N, K, file);
      Product product{Product::Set, m.get(), nullptr, y, N, nullptr};
      multiply(pool, {ROWS, K, x, q, scales}, &product, 1);
      for (int n = 0; n < N; n++) {
        m->row(n, w);
        for (int r = 0; r < ROWS; r++) {
          double want = 0, size = 0;
          for (int k = 0; k < K; k++) want += (double)w[k] * x[r * K + k], size += std::fabs((double)w[k] * x[r * K + k]);
          if (!(std::fabs(y[r * N + n] - want) <= 1e-2 * size)) return 0;
        }
      }
    }
    return 1;
  });
}

// out (rows, outputs) = x (rows, inputs) W^T + bias
API const char* ramet_linear(Pool* pool, const Matrix* matrix, const float* bias, int rows, const float* x, float* out) {
  int width = matrix->inputs;
  return guarded<const char*>(NO_MEMORY, [&]() -> const char* {
    Pool::Turn turn(*pool);
    Buffer<int8_t> rounded;
    Buffer<BlockScale> scales;
    if (quantised(matrix->kind)) {
      rounded = buffer<int8_t>((size_t)rows * width), scales = buffer<BlockScale>((size_t)rows * (width / BLOCK));
      pool->run_ranges(rows, GRAIN, [&](int begin, int end, int) {
        for (int64_t r = begin; r < end; r++) quantise(x + r * width, width, rounded.get() + r * width, scales.get() + r * (width / BLOCK));
      });
    }
    Product product{Product::Set, matrix, bias, out, matrix->outputs, nullptr};
    multiply(*pool, {rows, width, x, rounded.get(), scales.get()}, &product, 1);
    return nullptr;
  });
}

API void ramet_rms_norm(Pool* pool, int rows, int size, const float* x, const float* weight, float eps, float* out) {
  over_rows(pool, rows, [&](int64_t r) { rms_norm(x + r * size, weight, eps, size, out + r * size); });
}

API void ramet_add_rms_norm(Pool* pool, int rows, int size, const float* x, float* residual, const float* weight, float eps, float* out) {
  over_rows(pool, rows, [&](int64_t r) {
    for (int i = 0; i < size; i++) residual[r * size + i] += x[r * size + i];
    rms_norm(residual + r * size, weight, eps, size, out + r * size);
  });
}

// x: (rows, heads, size), in place
API void ramet_rope(Pool* pool, int rows, int heads, int size, int half_size, float* x, const int32_t* positions, const float* cosine,
                    const float* sine) {
  over_rows(pool, rows, [&](int64_t r) {
    int64_t at = (int64_t)positions[r] * half_size;
    for (int h = 0; h < heads; h++) rotate(x + (r * heads + h) * size, cosine + at, sine + at, half_size);
  });
}

API void ramet_store_kv(Pool* pool, int cache, int rows, int size, const float* k, const float* v, void* keys, void* values, const int32_t* slots) {
  over_rows(pool, rows, [&](int64_t r) {
    keep((Cache)cache, k + r * size, size, keys, slots[r]);
    keep((Cache)cache, v + r * size, size, values, slots[r]);
  });
}

API void ramet_silu_mul(Pool* pool, int rows, int size, const float* gate, const float* up, float* out) {
  over_rows(pool, rows, [&](int64_t r) { silu_mul(gate + r * size, up + r * size, size, out + r * size); });
}

API const char* ramet_attention(Pool* pool, const Meta* meta, int rows, int64_t slots, int cache, int heads, int kv_heads, int size, const float* q, const void* k, const void* v,
                        float scale, float* out) {
  return guarded<const char*>(NO_MEMORY, [&]() -> const char* {
    if (const char* wrong = check(*meta, rows, slots)) return wrong;
    Pool::Turn turn(*pool);
    Attention attention({heads, kv_heads, size}, pool->threads());
    attention.plan(*meta);
    attention.run(*pool, (Cache)cache, q, (int64_t)heads * size, k, v, scale, out, (int64_t)heads * size);
    return nullptr;
  });
}

// logits (rows, vocabulary): -infinity where the bit of an id is 0; a row of bits is `words` words of 32
API void ramet_mask_logits(Pool* pool, int rows, int vocabulary, int words, float* logits, const int32_t* bits) {
  over_rows(pool, rows, [&](int64_t r) {
    float* row = logits + r * vocabulary;
    for (int begin = 0, w = 0; begin < vocabulary; begin += 32, w++) {
      uint32_t allowed = (uint32_t)bits[r * words + w];
      int count = vocabulary - begin < 32 ? vocabulary - begin : 32;
      if (allowed == 0xffffffffu) continue;
      for (int i = 0; i < count; i++) row[begin + i] = allowed >> i & 1 ? row[begin + i] : -INFINITY;
    }
  });
}

API Decoder* ramet_decoder_new(Pool* pool, const DecoderSpec* spec) { return guarded<Decoder*>(nullptr, [&] { return new Decoder(*pool, *spec); }); }
API void ramet_decoder_free(Decoder* decoder) { delete decoder; }
API const char* ramet_decoder_forward(Pool* pool, Decoder* decoder, const Pass* pass) {
  return guarded<const char*>(NO_MEMORY, [&]() -> const char* {
    Pool::Turn turn(*pool);
    return decoder->forward(*pass);
  });
}
