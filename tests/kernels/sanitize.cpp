// The kernels' own test program, for sanitizers: every kind of weight, ragged passes with shared segments, several threads,
// pools that come and go. Prints nothing; ends with 0 when all is well. Built by test_sanitizers.py.
#include <cstdio>
#include <cstdlib>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "decoder.h"

using namespace ramet;

namespace {

std::mt19937 rng(1);
int below(int n) { return (int)(rng() % (uint32_t)n); }

const int FILE_BYTES[] = {4, 2, 2, 34, 18, 20, 144, 210}, ENTRIES[] = {1, 1, 1, 32, 32, 32, 256, 256};

std::unique_ptr<Matrix> matrix(Pool& pool, Kind kind, int outputs, int inputs) {
  std::vector<uint8_t> rows((size_t)outputs * inputs / ENTRIES[(int)kind] * FILE_BYTES[(int)kind]);
  for (auto& byte : rows) byte = (uint8_t)below(64);  // small positive numbers in every format
  if (kind == Kind::F32)
    for (size_t i = 0; i < rows.size(); i += 4) store_raw(&rows[i], (float)below(100) / 1000);
  return Matrix::pack(pool, kind, outputs, inputs, rows.data());
}

struct Model {
  std::vector<std::unique_ptr<Matrix>> kept;
  std::vector<float> ones = std::vector<float>(4096, 1.f), turns = std::vector<float>(512 * 32, 0.7f);
  std::vector<LayerSpec> layers;
  DecoderSpec spec{};

  Model(Pool& pool, Kind kind, int heads, int groups, int size, int hidden, int inner, int vocabulary) {
    auto linear = [&](int outputs, int inputs) {
      kept.push_back(matrix(pool, inputs % ENTRIES[(int)kind] ? Kind::BF16 : kind, outputs, inputs));
      return Linear{kept.back().get(), nullptr};
    };
    for (int i = 0; i < 2; i++)
      layers.push_back({ones.data(), ones.data(), ones.data(), nullptr, linear(heads * size, hidden), linear(groups * size, hidden),
                        linear(groups * size, hidden), linear(hidden, heads * size), linear(inner, hidden), linear(inner, hidden), linear(hidden, inner)});
    Linear head = linear(vocabulary, hidden);
    spec = {2, hidden, heads, groups, size, size / 2, 1e-5f, head.w, ones.data(), head, turns.data(), turns.data(), 512, layers.data()};
  }
};

// One pass of random sequences; the first few share a prefix of random length.
void pass(Decoder& decoder, const DecoderSpec& spec, Cache cache) {
  constexpr int SLOTS = 1500;
  int sequences = below(6), shared = below(300), members = sequences > 1 ? 2 + below(sequences - 1) : 0;
  std::vector<int32_t> starts{0}, lengths, tables((size_t)sequences * 512), positions, slots, ids, logit_rows, all(sequences);
  for (int s = 0, next = 400; s < sequences; s++) {
    int rows = below(4) ? below(4) : below(60), length = (s < members ? shared : 0) + rows + below(100);
    for (int p = 0; p < length; p++) tables[s * 512 + p] = s < members && p < shared ? p : next++;
    for (int p = length - rows; p < length; p++)
      positions.push_back(p), slots.push_back(tables[s * 512 + p]), ids.push_back(below(spec.head.w->outputs));
    lengths.push_back(length), starts.push_back(starts.back() + rows), all[s] = s;
    if (rows) logit_rows.push_back(starts.back() - 1);
  }
  int32_t zero = 0, stop = shared, member_start[] = {0, members};
  size_t count = (size_t)spec.layers * SLOTS * spec.kv_heads * spec.head_size;
  std::vector<float> keys(count, 0.1f), values(count, 0.2f), logits(logit_rows.size() * spec.head.w->outputs);
  Pass p{};
  p.rows = starts.back(), p.logit_count = (int)logit_rows.size();
  p.input_ids = ids.data(), p.positions = positions.data(), p.write_slots = slots.data(), p.logit_rows = logit_rows.data();
  p.meta = {sequences, members > 1, 512, starts.data(), lengths.data(), tables.data(), &zero, &stop, &zero, member_start, all.data()};
  p.cache = cache, p.keys = keys.data(), p.values = values.data();
  p.layer_stride = (int64_t)SLOTS * spec.kv_heads * spec.head_size, p.slots = SLOTS, p.logits = logits.data();
  if (const char* wrong = decoder.forward(p)) std::fprintf(stderr, "%s\n", wrong), std::exit(1);
  for (float x : logits)
    if (std::isnan(x)) std::fprintf(stderr, "NaN\n"), std::exit(1);
}

// A pool whose other threads keep the caller waiting gets by without them, and takes them back later.
bool crowded_pool_adapts() {
  Pool pool(3);
  auto pass = [&](bool crowded) {
    Pool::Turn turn(pool);
    pool.run(8, [&](int, int thread) { std::this_thread::sleep_for(std::chrono::milliseconds(crowded && thread ? 20 : 1)); });
  };
  for (int i = 0; i < 3; i++) pass(true);
  bool fewer = pool.active() == 1;
  for (int i = 0; i < 40 && pool.active() < 3; i++) pass(false);
  return fewer && pool.active() == 3;
}

}  // namespace

int main() {
  if (!crowded_pool_adapts()) return std::fprintf(stderr, "the pool did not adapt\n"), 1;
  for (int kind = 0; kind <= (int)Kind::Q6_K; kind++) {
    Pool pool(1 + kind % 3 * 2);
    Model model(pool, (Kind)kind, 6, 2, kind % 2 ? 20 : 64, 256, 512, 77);
    Decoder decoder(pool, model.spec);
    for (int i = 0; i < 8; i++) pass(decoder, model.spec, (Cache)(i % 3));
  }
  return 0;
}
