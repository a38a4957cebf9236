#include "decoder.h"

#include <algorithm>

namespace ramet {

namespace {
constexpr int GRAIN = 4;  // rows of a piece of work between products
}

Decoder::Decoder(Pool& pool, const DecoderSpec& spec)
    : pool_(pool), spec_(spec), layers_(spec.layer, spec.layer + spec.layers),
      attention_({spec.heads, spec.kv_heads, spec.head_size}, pool.threads()),
      q_size_(spec.heads * spec.head_size), kv_size_(spec.kv_heads * spec.head_size), inner_(0) {
  for (auto& layer : layers_) inner_ = std::max(inner_, layer.up.w->outputs);
}

void Decoder::reserve(int rows) {
  if (rows <= room_) return;
  size_t room = std::max(rows, 16), widest = std::max({spec_.hidden, q_size_, inner_});
  room_ = 0;
  for (auto* rows : {&hidden_, &normed_, &qkv_, &mixed_, &gated_}) rows->reset();
  hidden_ = buffer<float>(room * spec_.hidden);
  normed_ = buffer<float>(room * spec_.hidden);
  qkv_ = buffer<float>(room * (q_size_ + 2 * kv_size_));
  mixed_ = buffer<float>(room * q_size_);
  gated_ = buffer<float>(room * inner_);
  rounded_ = buffer<int8_t>(room * widest);
  scales_ = buffer<BlockScale>(room * (widest / BLOCK + 1));
  room_ = (int)room;
}

template <class Fill> Activations Decoder::prepare(int rows, int width, float* x, bool packed, Fill&& fill) {
  pool_.run_ranges(rows, GRAIN, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      float* row = x + (size_t)r * width;
      fill(r, row);
      if (packed) quantise(row, width, rounded_.get() + (size_t)r * width, scales_.get() + (size_t)r * (width / BLOCK));
    }
  });
  return {rows, width, x, rounded_.get(), scales_.get()};
}

const char* Decoder::check(const Pass& pass) const {
  for (int r = 0; r < pass.rows; r++) {
    if (pass.input_ids[r] < 0 || pass.input_ids[r] >= spec_.embed->outputs) return "an id lies outside the vocabulary";
    if (pass.positions[r] < 0 || pass.positions[r] >= spec_.positions) return "a position lies beyond the rotary table";
    if (pass.write_slots[r] < 0 || pass.write_slots[r] >= pass.slots) return "write_slots names a slot outside the pool";
  }
  for (int i = 0; i < pass.logit_count; i++)
    if (pass.logit_rows[i] < 0 || pass.logit_rows[i] >= pass.rows) return "logit_rows names a row that is not there";
  return ramet::check(pass.meta, pass.rows, pass.slots);
}

const char* Decoder::forward(const Pass& pass) {
  if (const char* wrong = check(pass)) return wrong;
  int hidden = spec_.hidden;
  reserve(std::max(pass.rows, pass.logit_count));
  attention_.plan(pass.meta);
  pool_.run_ranges(pass.rows, GRAIN, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) spec_.embed->row(pass.input_ids[r], hidden_.get() + (size_t)r * hidden);
  });
  for (int i = 0; i < spec_.layers && pass.rows; i++) {
    attend(layers_[i], pass, i);
    feed_forward(layers_[i], pass.rows);
  }
  Activations last = prepare(pass.logit_count, hidden, normed_.get(), quantised(spec_.head.w->kind), [&](int r, float* x) {
    rms_norm(hidden_.get() + (size_t)pass.logit_rows[r] * hidden, spec_.norm, spec_.eps, hidden, x);
  });
  Product head{Product::Set, spec_.head.w, spec_.head.bias, pass.logits, spec_.head.w->outputs, nullptr};
  multiply(pool_, last, &head, 1);
  return nullptr;
}

// hidden += o(attention(rope(q), rope(k), v)) of the normalised rows.
void Decoder::attend(const LayerSpec& layer, const Pass& pass, int index) {
  int hidden = spec_.hidden, size = spec_.head_size;
  int64_t stride = q_size_ + 2 * kv_size_;
  bool packed = quantised(layer.q.w->kind) || quantised(layer.k.w->kind) || quantised(layer.v.w->kind);
  Activations x = prepare(pass.rows, hidden, normed_.get(), packed, [&](int r, float* to) {
    rms_norm(hidden_.get() + (size_t)r * hidden, layer.attn_norm, spec_.eps, hidden, to);
  });
  float *q = qkv_.get(), *k = q + q_size_, *v = k + kv_size_;
  Product products[] = {{Product::Set, layer.q.w, layer.q.bias, q, stride, nullptr},
                        {Product::Set, layer.k.w, layer.k.bias, k, stride, nullptr},
                        {Product::Set, layer.v.w, layer.v.bias, v, stride, nullptr}};
  multiply(pool_, x, products, 3);

  size_t offset = (size_t)index * pass.layer_stride * number_bytes(pass.cache);
  void *keys = (char*)pass.keys + offset, *values = (char*)pass.values + offset;
  pool_.run_ranges(pass.rows, GRAIN, [&](int begin, int end, int) {
    for (int r = begin; r < end; r++) {
      const float* cosine = spec_.cosine + (int64_t)pass.positions[r] * spec_.rotary_half;
      const float* sine = spec_.sine + (int64_t)pass.positions[r] * spec_.rotary_half;
      auto turn = [&](float* head, const float* norm) {
        if (norm) rms_norm(head, norm, spec_.eps, size, head);
        rotate(head, cosine, sine, spec_.rotary_half);
      };
      for (int h = 0; h < spec_.heads; h++) turn(q + r * stride + h * size, layer.q_norm);
      for (int h = 0; h < spec_.kv_heads; h++) turn(k + r * stride + h * size, layer.k_norm);
      keep(pass.cache, k + r * stride, kv_size_, keys, pass.write_slots[r]);
      keep(pass.cache, v + r * stride, kv_size_, values, pass.write_slots[r]);
    }
  });
  attention_.run(pool_, pass.cache, q, stride, keys, values, 1.f / std::sqrt((float)size), mixed_.get(), q_size_);

  Activations y = prepare(pass.rows, q_size_, mixed_.get(), quantised(layer.o.w->kind), [](int, float*) {});
  Product o{Product::Add, layer.o.w, layer.o.bias, hidden_.get(), hidden, nullptr};
  multiply(pool_, y, &o, 1);
}

// hidden += down(silu(gate(x)) * up(x)) of the normalised rows.
void Decoder::feed_forward(const LayerSpec& layer, int rows) {
  int hidden = spec_.hidden, inner = layer.up.w->outputs;
  bool packed = quantised(layer.gate.w->kind) || quantised(layer.up.w->kind);
  Activations x = prepare(rows, hidden, normed_.get(), packed, [&](int r, float* to) {
    rms_norm(hidden_.get() + (size_t)r * hidden, layer.mlp_norm, spec_.eps, hidden, to);
  });
  Product up{Product::SiluMul, layer.up.w, nullptr, gated_.get(), inner, layer.gate.w};
  multiply(pool_, x, &up, 1);
  Activations y = prepare(rows, inner, gated_.get(), quantised(layer.down.w->kind), [](int, float*) {});
  Product down{Product::Add, layer.down.w, layer.down.bias, hidden_.get(), hidden, nullptr};
  multiply(pool_, y, &down, 1);
}

}  // namespace ramet
