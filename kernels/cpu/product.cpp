#include "product.h"

#include "amx.h"

#include <algorithm>

namespace ramet {

void quantise(const float* x, int inputs, int8_t* q, BlockScale* scale) {
  constexpr int N = BLOCK / VL;
  const vf round = splat(12582912.f);  // 1.5 * 2^23: adding it rounds to the nearest whole number
  for (int b = 0; b < inputs / BLOCK; b++, x += BLOCK, q += BLOCK, scale++) {
    vf v[N];
    vi size = vi{};  // sizes compared as whole numbers: the same order, and a NaN is larger than all
    for (int i = 0; i < N; i++) {
      v[i] = load(x + i * VL);
      vi bits = bits_as<vi>(v[i]) & 0x7fffffff;
      size = bits > size ? bits : size;
    }
    int32_t most_bits = 0;
    for (int i = 0; i < VL; i++) most_bits = std::max(most_bits, size[i]);
    float most = bits_as<float>(most_bits), d = most / 127.f, inverse = d > 0 ? 127.f / most : 0.f;
    vi first = vi{}, sum = vi{};
    for (int i = 0; i < N; i++) {
      vi whole = bits_as<vi>(fma(v[i], splat(inverse), round)) - 0x4b400000;
      store_bytes(q + i * VL, whole);
      sum += whole;
      if (i == N / 2 - 1) first = sum;
    }
    int32_t halves[2] = {};
    for (int i = 0; i < VL; i++) halves[0] += first[i], halves[1] += sum[i];
    *scale = {d, d * (float)halves[1], halves[0], halves[1]};
  }
}

namespace {

constexpr int GROUP = 16;  // rows that one call of a kernel takes
constexpr int AHEAD = 1024;  // bytes of weights asked for ahead: a page further on, the processor does not foresee them
constexpr int ROWS = 64;   // rows of a piece: their activations stay in the core's own cache
const vi LOW4 = splat(0x0f0f0f0f), LOW2 = splat(0x03030303);

// Each format says how a block of weights, `w`, is multiplied with MR rows. `sums` gives the whole numbers: q is the first row's
// block, rows lie `stride` apart, and s says what their scales are, `blocks` apart. `add` scales them into acc.
// For tiles, `spread` lays the weights out as bytes.

template <int MR> inline void nibbles(vi (&sum)[MR], const uint8_t* w, const int8_t* q, int64_t stride) {
  for (int j = 0; j < 4; j++) {
    vi raw = load_raw<vi>(w + j * VB), low = raw & LOW4, high = raw >> 4 & LOW4;
    for (int m = 0; m < MR; m++) {
      sum[m] = dot_small(sum[m], low, repeat(q + m * stride + 4 * j));
      sum[m] = dot_small(sum[m], high, repeat(q + m * stride + 16 + 4 * j));
    }
  }
}

inline const uint8_t* spread_nibbles(const uint8_t* w, uint8_t* room) {
  for (int j = 0; j < 4; j++) {
    vi raw = load_raw<vi>(w + j * VB);
    store_raw(room + j * VB, raw & LOW4), store_raw(room + (j + 4) * VB, raw >> 4 & LOW4);
  }
  return room;
}

template <bool OFFSET> struct Q4 {
  static constexpr int HEAD = 0, BYTES = VL * (OFFSET ? 20 : 18), BLOCKS = 1, QUANTS = VL * (OFFSET ? 4 : 2);
  static constexpr bool TILES = true, SIGNED = false;
  template <int MR> static void sums(vi (&sum)[MR], const uint8_t* w, const int8_t* q, int64_t stride, const BlockScale*, int64_t) {
    for (vi& each : sum) each = vi{};
    nibbles<MR>(sum, w + QUANTS, q, stride);
    for (vi& each : sum) each = total(each);
  }
  template <int MR> static void add(const uint8_t*, const uint8_t* w, const vi (&sum)[MR], const BlockScale* s, int64_t blocks, vf* acc) {
    vf d = load((const half*)w), offset = OFFSET ? load((const half*)(w + 2 * VL)) : d * -8.f;
    for (int m = 0; m < MR; m++) {
      acc[m] = fma(to_float(sum[m]), d * s[m * blocks].d, acc[m]);
      acc[m] = fma(offset, splat(s[m * blocks].total), acc[m]);
    }
  }
  static const uint8_t* spread(const uint8_t* w, uint8_t* room) { return spread_nibbles(w + QUANTS, room); }
};

struct Q8 {
  static constexpr int HEAD = 0, BYTES = VL * 34, BLOCKS = 1;
  static constexpr bool TILES = true, SIGNED = true;
  template <int MR> static void sums(vi (&sum)[MR], const uint8_t* w, const int8_t* q, int64_t stride, const BlockScale* s, int64_t blocks) {
    for (int m = 0; m < MR; m++) sum[m] = wide_start(s[m * blocks].sum);
    for (int j = 0; j < 8; j++) {
      Wide weight = wide_weight(load_raw<vi>(w + 2 * VL + j * VB));
      for (int m = 0; m < MR; m++) sum[m] = dot_wide(sum[m], weight, repeat(q + m * stride + 4 * j));
    }
  }
  template <int MR> static void add(const uint8_t*, const uint8_t* w, const vi (&sum)[MR], const BlockScale* s, int64_t blocks, vf* acc) {
    vf d = load((const half*)w);
    for (int m = 0; m < MR; m++) acc[m] = fma(to_float(sum[m]), d * s[m * blocks].d, acc[m]);
  }
  static const uint8_t* spread(const uint8_t* w, uint8_t*) { return w + 2 * VL; }
};

inline vi bytes_as_ints(const uint8_t* p) { return __builtin_convertvector(load_raw<vu8>(p), vi); }
inline vi signed_bytes(const uint8_t* p) { return __builtin_convertvector(load_raw<vs8>(p), vi); }

struct Q4K {
  static constexpr int HEAD = 4 * VL, BYTES = VL * 18, BLOCKS = SUPER;
  static constexpr bool TILES = true, SIGNED = false;
  template <int MR> static void sums(vi (&sum)[MR], const uint8_t* w, const int8_t* q, int64_t stride, const BlockScale*, int64_t) {
    for (vi& each : sum) each = vi{};
    nibbles<MR>(sum, w + 2 * VL, q, stride);
    for (vi& each : sum) each = total(each);
  }
  template <int MR> static void add(const uint8_t* head, const uint8_t* w, const vi (&sum)[MR], const BlockScale* s, int64_t blocks, vf* acc) {
    vf scale = load((const half*)head) * to_float(bytes_as_ints(w));
    vf offset = load((const half*)(head + 2 * VL)) * to_float(bytes_as_ints(w + VL));
    for (int m = 0; m < MR; m++) {
      acc[m] = fma(to_float(sum[m]), scale * s[m * blocks].d, acc[m]);
      acc[m] = fma(offset, splat(-s[m * blocks].total), acc[m]);
    }
  }
  static const uint8_t* spread(const uint8_t* w, uint8_t* room) { return spread_nibbles(w + 2 * VL, room); }
};

struct Q6K {
  static constexpr int HEAD = 2 * VL, BYTES = VL * 26, BLOCKS = SUPER;
  static constexpr bool TILES = false, SIGNED = true;  // two scales to a block
  template <int MR> static void sums(vi (&sum)[MR], const uint8_t* w, const int8_t* q, int64_t stride, const BlockScale* s, int64_t blocks) {
    for (vi& each : sum) each = vi{};
    for (int part = 0; part < 2; part++) {  // 16 inputs with their own scale
      vi partial[MR];
      for (int m = 0; m < MR; m++) {
        const BlockScale& at = s[m * blocks];
        partial[m] = six_start(part ? at.sum - at.first : at.first);
      }
      for (int j = 0; j < 4; j++) {
        int group = part * 4 + j;  // inputs 4 group .. 4 group + 3
        vi low = load_raw<vi>(w + 2 * VL + j * VB) >> (4 * part) & LOW4;
        vi high = load_raw<vi>(w + 18 * VL + group % 2 * VB) >> (group / 2 * 2) & LOW2;
        Wide weight = six_weight(low | high << 4);
        for (int m = 0; m < MR; m++) partial[m] = dot_six(partial[m], weight, repeat(q + m * stride + 4 * group));
      }
      vi scale = pair(signed_bytes(w + part * VL));
      for (int m = 0; m < MR; m++) sum[m] += total(partial[m], scale);
    }
  }
  template <int MR> static void add(const uint8_t* head, const uint8_t*, const vi (&sum)[MR], const BlockScale* s, int64_t blocks, vf* acc) {
    vf d = load((const half*)head);
    for (int m = 0; m < MR; m++) acc[m] = fma(to_float(sum[m]), d * s[m * blocks].d, acc[m]);
  }
};

// Calls each(head, block) for the blocks of a tile, in the order of the inputs.
template <class Format, class Each> inline void over_blocks(const uint8_t* w, int64_t blocks, Each&& each) {
  for (int64_t b = 0; b < blocks; b += Format::BLOCKS) {
    const uint8_t* head = w;
    w += Format::HEAD;
    for (int i = 0; i < Format::BLOCKS; i++, w += Format::BYTES) each(head, w);
  }
}

template <class Format, int MR> void packed_rows(const uint8_t* w, const Activations& x, int row, float* out) {
  vf acc[MR] = {};
  int64_t stride = x.inputs, blocks = x.inputs / BLOCK;
  const int8_t* q = x.q + row * stride;
  const BlockScale* s = x.scale + row * blocks;
  over_blocks<Format>(w, blocks, [&](const uint8_t* head, const uint8_t* block) {
    vi sum[MR];
    for (int i = 0; i < Format::BYTES; i += 64) __builtin_prefetch(block + AHEAD + i);
    Format::template sums<MR>(sum, block, q, stride, s, blocks);
    Format::template add<MR>(head, block, sum, s, blocks, acc);
    q += BLOCK, s++;
  });
  for (int m = 0; m < MR; m++) store(out + m * VL, acc[m]);
}

#if defined(RAMET_AMX)
// The same for up to 16 rows by tiles, which `shape_tiles` has made as high.
template <class Format> void packed_tiles(const uint8_t* w, const Activations& x, int row, int count, float* out) {
  vf acc[TILE_ROWS] = {};
  alignas(64) int32_t sums[TILE_ROWS * VL];
  alignas(64) uint8_t room[8 * VB];
  int64_t stride = x.inputs, blocks = x.inputs / BLOCK;
  const int8_t* q = x.q + row * stride;
  const BlockScale* s = x.scale + row * blocks;
  over_blocks<Format>(w, blocks, [&](const uint8_t* head, const uint8_t* block) {
    tile_sums<Format::SIGNED>(q, stride, Format::spread(block, room), sums);
    for (int m = 0; m < count; m++) {
      vi sum[1] = {load_raw<vi>(sums + m * VL)};
      Format::template add<1>(head, block, sum, s + m * blocks, blocks, acc + m);
    }
    q += BLOCK, s++;
  });
  for (int m = 0; m < count; m++) store(out + m * VL, acc[m]);
}
constexpr int TILES_FROM = 4;  // rows from which tiles are quicker
#endif

// Plain weights: one fused product after the other, in the order of the inputs.
template <class T, int MR> void plain_rows(const uint8_t* tile, const Activations& x, int row, float* out) {
  vf acc[MR][2] = {};
  const T* w = (const T*)tile;
  const float* in = x.x + (int64_t)row * x.inputs;
  for (int k = 0; k < x.inputs; k++, w += 2 * VL) {
    vf w0 = load(w), w1 = load(w + VL);
    for (int m = 0; m < MR; m++) {
      vf value = splat(in[(int64_t)m * x.inputs + k]);
      acc[m][0] = fma(w0, value, acc[m][0]);
      acc[m][1] = fma(w1, value, acc[m][1]);
    }
  }
  for (int m = 0; m < MR; m++) store(out + m * 2 * VL, acc[m][0]), store(out + m * 2 * VL + VL, acc[m][1]);
}

template <class Format> struct Packed {
  static constexpr int WIDTH = VL;
  template <int MR> static void rows(const uint8_t* w, const Activations& x, int row, float* out) { packed_rows<Format, MR>(w, x, row, out); }
  static bool tiles(const uint8_t* w, const Activations& x, int row, int count, float* out) {
#if defined(RAMET_AMX)
    if constexpr (Format::TILES)
      if (count >= TILES_FROM) return shape_tiles(count), packed_tiles<Format>(w, x, row, count, out), true;
#endif
    (void)w, (void)x, (void)row, (void)count, (void)out;
    return false;
  }
};
template <class T> struct Plain {
  static constexpr int WIDTH = 2 * VL;
  template <int MR> static void rows(const uint8_t* w, const Activations& x, int row, float* out) { plain_rows<T, MR>(w, x, row, out); }
  static bool tiles(const uint8_t*, const Activations&, int, int, float*) { return false; }
};

// Outputs of one tile of weights for rows row..row+count-1 (at most GROUP): out is (count, width of the tile).
using Kernel = void (*)(const uint8_t* tile, const Activations& x, int row, int count, float* out);

template <class F> void tile_rows(const uint8_t* tile, const Activations& x, int row, int count, float* out) {
  if (F::tiles(tile, x, row, count, out)) return;
  for (; count >= 4; count -= 4, row += 4, out += 4 * F::WIDTH) F::template rows<4>(tile, x, row, out);
  if (count & 2) F::template rows<2>(tile, x, row, out), row += 2, out += 2 * F::WIDTH;
  if (count & 1) F::template rows<1>(tile, x, row, out);
}

Kernel kernel_of(Kind kind) {
  switch (kind) {
    case Kind::F32: return tile_rows<Plain<float>>;
    case Kind::F16: return tile_rows<Plain<half>>;
    case Kind::BF16: return tile_rows<Plain<bfloat>>;
    case Kind::Q8_0: return tile_rows<Packed<Q8>>;
    case Kind::Q4_0: return tile_rows<Packed<Q4<false>>>;
    case Kind::Q4_1: return tile_rows<Packed<Q4<true>>>;
    case Kind::Q4_K: return tile_rows<Packed<Q4K>>;
    case Kind::Q6_K: return tile_rows<Packed<Q6K>>;
  }
  return nullptr;
}

// What becomes of one vector of sums y (and of the gate's), given what stands in `out` and the bias.
inline vf finished(Product::What what, vf y, vf gate, vf bias, vf out) {
  if (what == Product::SiluMul) return silu(gate) * y;
  return what == Product::Add ? y + bias + out : y + bias;
}

// Puts the sums of one tile where they belong: y and gate are (count, width).
void finish(const Product& p, int first, int width, int row, int count, const float* y, const float* gate) {
  int lanes = std::min(width, p.w->outputs - first), whole = lanes / VL * VL, rest = lanes - whole;
  const float* bias = p.bias ? p.bias + first : nullptr;
  for (int m = 0; m < count; m++, y += width, gate += width) {
    float* out = p.out + (row + m) * p.stride + first;
    for (int v = 0; v < whole; v += VL)
      store(out + v, finished(p.what, load(y + v), load(gate + v), bias ? load(bias + v) : vf{}, load(out + v)));
    if (rest) {
      float last[2][VL] = {};
      std::copy_n(out + whole, rest, last[0]);
      if (bias) std::copy_n(bias + whole, rest, last[1]);
      store(last[0], finished(p.what, load(y + whole), load(gate + whole), load(last[1]), load(last[0])));
      std::copy_n(last[0], rest, out + whole);
    }
  }
}

void piece(const Product& p, const Activations& x, int tile, int last_tile, int begin, int end) {
  Kernel kernel = kernel_of(p.w->kind), gate_kernel = p.what == Product::SiluMul ? kernel_of(p.gate->kind) : nullptr;
  int width = tile_outputs(p.w->kind);
  alignas(64) float y[GROUP * 2 * VL], gate[GROUP * 2 * VL];
  for (; tile < last_tile; tile++)
    for (int row = begin; row < end; row += GROUP) {
      int count = std::min(GROUP, end - row);
      kernel(p.w->tile(tile), x, row, count, y);
      if (gate_kernel) gate_kernel(p.gate->tile(tile), x, row, count, gate);
      finish(p, tile * width, width, row, count, y, gate);
    }
#if defined(RAMET_AMX)
  release_tiles();  // so that the system need not save them
#endif
}

}  // namespace

void multiply(Pool& pool, const Activations& x, const Product* products, int count) {
  if (!x.rows) return;
  int row_blocks = (x.rows + ROWS - 1) / ROWS, tiles = 0;
  for (int i = 0; i < count; i++) tiles += products[i].w->tiles();
  int wanted = std::max(1, pool.threads() * 8 / row_blocks);
  int grain = std::max(1, (tiles + wanted - 1) / wanted);  // tiles of a piece
  int pieces = 0;
  for (int i = 0; i < count; i++) pieces += (products[i].w->tiles() + grain - 1) / grain;
  pool.run(pieces * row_blocks, [&](int index, int) {
    int at = index / row_blocks, begin = index % row_blocks * ROWS;
    for (int i = 0; i < count; i++) {
      int tiles = products[i].w->tiles(), here = (tiles + grain - 1) / grain;
      if (at < here) return piece(products[i], x, at * grain, std::min(tiles, (at + 1) * grain), begin, std::min(x.rows, begin + ROWS));
      at -= here;
    }
  });
}

}  // namespace ramet
