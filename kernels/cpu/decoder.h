// A whole stack of decoder layers of the Llama family as one call.
#pragma once
#include "product.h"
#include "rows.h"

namespace ramet {

struct Linear { const Matrix* w; const float* bias; };

struct LayerSpec {
  const float *attn_norm, *mlp_norm, *q_norm, *k_norm;  // the last two may be null
  Linear q, k, v, o, gate, up, down;
};

struct DecoderSpec {
  int layers, hidden, heads, kv_heads, head_size, rotary_half;
  float eps;
  const Matrix* embed;
  const float* norm;
  Linear head;
  const float *cosine, *sine;  // (positions, rotary_half)
  int positions;
  const LayerSpec* layer;
};

struct Pass {  // interface.DecoderInput and the pool
  int rows, logit_count;
  const int32_t *input_ids, *positions, *write_slots, *logit_rows;
  Meta meta;
  Cache cache;
  void *keys, *values;   // (layers, slots, key-value heads, head size)
  int64_t layer_stride;  // numbers from one layer of the pool to the next
  int64_t slots;
  float* logits;         // (logit_count, vocabulary)
};

class Decoder {
 public:
  Decoder(Pool& pool, const DecoderSpec& spec);
  // Returns what is wrong with the pass, or null. Throws std::bad_alloc.
  const char* forward(const Pass& pass);

 private:
  const char* check(const Pass& pass) const;
  void reserve(int rows);
  // Makes rows of `width` floats by fill(row, its floats) and, where a packed matrix reads them, rounds them to 8 bits.
  template <class Fill> Activations prepare(int rows, int width, float* x, bool packed, Fill&& fill);
  void attend(const LayerSpec& layer, const Pass& pass, int index);
  void feed_forward(const LayerSpec& layer, int rows);

  Pool& pool_;
  DecoderSpec spec_;
  std::vector<LayerSpec> layers_;
  Attention attention_;
  int q_size_, kv_size_, inner_;
  int room_ = 0;
  Buffer<float> hidden_, normed_, qkv_, mixed_, gated_;  // by row
  Buffer<int8_t> rounded_;
  Buffer<BlockScale> scales_;
};

}  // namespace ramet
