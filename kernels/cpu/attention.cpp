#include "attention.h"

#include <algorithm>
#include <limits>

namespace ramet {

namespace {

constexpr int FEW = 8;           // rows of a sequence up to which sharing its splits pays; more rows use a split well alone
constexpr int OWN_ROWS = 16;     // rows of a task of its own
constexpr int AHEAD_ROWS = 32;   // rows of a task ahead
constexpr int LINE = 64;         // bytes that memory hands over at a time
constexpr int64_t MOST_BYTES = 64 << 20;  // of parts that wait for their rows

int splits_of(int context) { return (context + SPLIT - 1) / SPLIT; }
// How many positions of a split the row at `position` sees.
int seen(int position, int split) { return std::clamp(position + 1 - split * SPLIT, 0, SPLIT); }

// Scores of Q queries against P vectors of positions, `keys` being those of the first number of each head. Every score is
// summed over the numbers of the head in order, so its bits do not depend on Q and P.
template <int Q, int P> void score_block(const Query* queries, const float* keys, int size, int position) {
  vf acc[Q][P] = {};
  keys += position;
  for (int d = 0; d < size; d++, keys += SPLIT) {
    vf x[Q];
    for (int i = 0; i < Q; i++) x[i] = splat(queries[i].q[d]);
    for (int p = 0; p < P; p++) {
      vf k = held(load(keys + p * VL));
      for (int i = 0; i < Q; i++) acc[i][p] = fma(x[i], k, acc[i][p]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int p = 0; p < P; p++) store(queries[i].scores + position + p * VL, acc[i][p]);
}

template <int Q> void score(const Query* queries, const float* keys, int count, int size) {
  constexpr int MOST = SPLIT / VL < 8 / Q ? SPLIT / VL : 8 / Q;  // sums that keep the multipliers busy and fit the registers
  int position = 0;
  for (; position + MOST * VL <= count; position += MOST * VL) score_block<Q, MOST>(queries, keys, size, position);
  for (; position + 2 * VL <= count; position += 2 * VL) score_block<Q, 2>(queries, keys, size, position);
  for (; position < count; position += VL) score_block<Q, 1>(queries, keys, size, position);
}

// Scores become exponentials relative to the largest; part[0] is that, part[1] the sum.
void exponentials(const Query& query) {
  for (int p = query.count; p % VL; p++) query.scores[p] = -std::numeric_limits<float>::infinity();
  vf most = load(query.scores), total = vf{};
  for (int p = VL; p < query.count; p += VL) {
    vf s = load(query.scores + p);
    most = s < most ? most : s;  // a NaN stays
  }
  float top = largest(most);
  for (int p = 0; p < query.count; p += VL) {
    vf e = exp_negative(load(query.scores + p) - top);
    store(query.scores + p, e);
    total += e;
  }
  query.part[0] = top, query.part[1] = sum(total);
}

// The sums of values weighted by Q queries' exponentials: N vectors of them, from number `d` of the head on.
template <int Q, int N> void weigh(const Query* queries, const float* values, int count, int padded, int d) {
  vf acc[Q][N] = {};
  values += d;
  for (int p = 0; p < count; p++, values += padded) {
    vf w[Q];
    for (int i = 0; i < Q; i++) w[i] = splat(queries[i].scores[p]);
    for (int n = 0; n < N; n++) {
      vf v = held(load(values + n * VL));
      for (int i = 0; i < Q; i++) acc[i][n] = fma(w[i], v, acc[i][n]);
    }
  }
  for (int i = 0; i < Q; i++)
    for (int n = 0; n < N; n++) store(queries[i].part + 2 + d + n * VL, acc[i][n]);
}

template <int Q> void weigh_all(const Query* queries, const float* values, int count, int padded) {
  int d = 0;
  for (; d + 4 * VL <= padded; d += 4 * VL) weigh<Q, 4>(queries, values, count, padded, d);
  for (; d < padded; d += VL) weigh<Q, 1>(queries, values, count, padded, d);
}

// Calls one(query) or two(two queries that see as much), for all that see something.
template <class One, class Two> void in_pairs(const Query* queries, int n, One&& one, Two&& two) {
  for (int i = 0; i < n;) {
    if (i + 1 < n && queries[i].count == queries[i + 1].count) two(queries + i), i += 2;
    else one(queries + i), i++;
  }
}

// What the positions of one split give each query. keys: (size, SPLIT), number by number; values: (SPLIT, padded).
void attend(const Query* queries, int n, const float* keys, const float* values, int size, int padded) {
  in_pairs(queries, n, [&](const Query* q) { score<1>(q, keys, q->count, size); }, [&](const Query* q) { score<2>(q, keys, q->count, size); });
  for (int i = 0; i < n; i++) exponentials(queries[i]);
  in_pairs(queries, n, [&](const Query* q) { weigh_all<1>(q, values, q->count, padded); }, [&](const Query* q) { weigh_all<2>(q, values, q->count, padded); });
}

void clear(float* state, int padded) {
  state[0] = -std::numeric_limits<float>::infinity();
  std::fill(state + 1, state + 2 + padded, 0.f);
}

void merge(float* state, const float* part, int padded) {
  float top = state[0] < part[0] ? part[0] : state[0];
  vf kept = exp_negative(splat(state[0] - top)), added = exp_negative(splat(part[0] - top));
  state[0] = top;
  state[1] = state[1] * kept[0] + part[1] * added[0];
  for (int d = 2; d < padded + 2; d += VL) store(state + d, fma(load(state + d), kept, load(part + d) * added));
}

}  // namespace

Attention::Attention(Heads heads, int threads)
    : heads_(heads), threads_(threads), padded_((heads.size + VL - 1) / VL * VL), scratch_(threads) {}

const char* check(const Meta& meta, int rows, int64_t slots) {
  int next = 0;
  for (int s = 0; s < meta.sequences; s++) {
    int begin = meta.query_start[s], end = meta.query_start[s + 1], context = meta.context_len[s];
    if (begin != next || end < begin || end > rows) return "query_start does not tile the rows";
    if (context < end - begin || context > meta.table_stride) return "context_len is less than a sequence's rows or more than its table";
    if (end == begin) continue;
    const int32_t* table = meta.tables + s * meta.table_stride;
    for (int p = 0; p < context; p++)
      if (table[p] < 0 || table[p] >= slots) return "tables name a slot outside the pool";
    next = end;
  }
  if (next != rows) return "query_start does not tile the rows";
  for (int i = 0; i < meta.segments; i++) {
    if (meta.owner[i] < 0 || meta.owner[i] >= meta.sequences || meta.start[i] < 0 || meta.stop[i] > meta.context_len[meta.owner[i]])
      return "a segment lies outside its owner";
    for (int j = meta.member_start[i]; j < meta.member_start[i + 1]; j++)
      if (meta.members[j] < 0 || meta.members[j] >= meta.sequences || meta.stop[i] > meta.context_len[meta.members[j]])
        return "a segment lies outside one of its members";
  }
  return nullptr;
}

// --- planning ----------------------------------------------------------------------------------------------------------

void Attention::plan(const Meta& meta) {
  rows_.clear(), ahead_.clear(), own_.clear();
  found_start_.assign(1, 0);
  for (int s = 0; s < meta.sequences; s++) found_start_.push_back(found_start_.back() + splits_of(meta.context_len[s]));
  found_.assign(found_start_.back(), -1);
  entries_ = 0;
  share(meta);
  spread(meta);
  if (entries_ > room_) {
    parts_.reset();
    parts_ = buffer<float>(entries_ * heads_.queries * state_size());
    room_ = entries_;
  }
  for (int s = 0; s < meta.sequences; s++) {
    int begin = meta.query_start[s], count = meta.query_start[s + 1] - begin, first = meta.context_len[s] - count;
    // Few rows wait for memory, and read all heads of a slot at once; many rows compute, a head at a time.
    int heads = count <= FEW ? heads_.keys : 1;
    for (int r = 0; r < count; r += OWN_ROWS)
      for (int head = 0; head < heads_.keys; head += heads)
        own_.push_back({meta.tables + s * meta.table_stride, {begin + r, first + r}, std::min(OWN_ROWS, count - r), {head, heads}, found_start_[s], r});
  }
  int most = 0, rows = 0;
  for (const Own& task : own_) most = std::max(most, task.rows * task.heads.count * ratio()), rows = std::max(rows, task.rows);
  for (const Ahead& task : ahead_) most = std::max(most, task.rows * heads_.queries), rows = std::max(rows, task.rows);
  reserve(most, rows * ratio());
}

// Plans splits first..last-1 for all rows of some sequences, `run` splits to a task, unless the parts would take too much room.
void Attention::add_ahead(const Meta& meta, const int32_t* slots, int first, int last, int run, const int32_t* members, int count) {
  int row = (int)rows_.size();
  for (int i = 0; i < count; i++) {
    int s = members[i], begin = meta.query_start[s], end = meta.query_start[s + 1];
    for (int r = begin; r < end; r++) rows_.push_back({r, meta.context_len[s] - (end - r)});
  }
  int64_t rows = (int64_t)rows_.size() - row;
  if ((entries_ + rows * (last - first)) * heads_.queries * state_size() * (int64_t)sizeof(float) > MOST_BYTES) return rows_.resize(row);
  int64_t offset = 0;
  for (int i = 0; i < count; i++) {
    int s = members[i];
    for (int split = first; split < last; split++) found_[found_start_[s] + split] = entries_ + (split - first) * rows + offset;
    offset += meta.query_start[s + 1] - meta.query_start[s];
  }
  for (int split = first; split < last; split += run)
    for (int r = 0; r < rows; r += AHEAD_ROWS)
      ahead_.push_back({slots, split, std::min(last, split + run), row + r, (int)std::min<int64_t>(AHEAD_ROWS, rows - r),
                        entries_ + (split - first) * rows + r, rows});
  entries_ += rows * (last - first);
}

void Attention::share(const Meta& meta) {
  std::vector<int32_t> members;
  for (int i = 0; i < meta.segments; i++) {
    int first = (meta.start[i] + SPLIT - 1) / SPLIT, last = meta.stop[i] / SPLIT;
    members.clear();
    for (int j = meta.member_start[i]; j < meta.member_start[i + 1]; j++) {
      int s = meta.members[j], rows = meta.query_start[s + 1] - meta.query_start[s];
      if (rows > 0 && rows <= FEW) members.push_back(s);
    }
    if (first < last && members.size() > 1)
      add_ahead(meta, meta.tables + meta.owner[i] * meta.table_stride, first, last, 4, members.data(), (int)members.size());
  }
}

// Long contexts of few rows are cut up where whole sequences would leave threads without work.
void Attention::spread(const Meta& meta) {
  auto rows_of = [&](int s) { return meta.query_start[s + 1] - meta.query_start[s]; };
  int64_t total = 0;
  for (int s = 0; s < meta.sequences; s++) total += (int64_t)((rows_of(s) + OWN_ROWS - 1) / OWN_ROWS) * splits_of(meta.context_len[s]);
  int fair = (int)std::max<int64_t>(1, total / (threads_ * 4));
  for (int32_t s = 0; s < meta.sequences && threads_ > 1; s++) {
    int splits = splits_of(meta.context_len[s]);
    const int64_t* found = found_.data() + found_start_[s];
    if (rows_of(s) < 1 || rows_of(s) > FEW || std::count(found, found + splits, -1) <= fair) continue;
    for (int first = 0, last; first < splits; first = last + 1) {
      for (; first < splits && found[first] >= 0; first++) {
      }
      for (last = first; last < splits && found[last] < 0; last++) {
      }
      if (first < last) add_ahead(meta, meta.tables + s * meta.table_stride, first, last, std::min(fair, 8), &s, 1);
    }
  }
}

// --- one layer ---------------------------------------------------------------------------------------------------------

void Attention::reserve(int queries, int together) {
  auto zeros = [](size_t count) {
    auto made = buffer<float>(count);
    std::fill(made.get(), made.get() + count, 0.f);  // the padding of heads stays 0
    return made;
  };
  for (Scratch& s : scratch_) {
    if (!s.keys) s.keys = zeros(SPLIT * padded_), s.values = zeros(SPLIT * padded_);
    if (queries > s.queries) s.q = zeros(queries * padded_), s.states = zeros(queries * state_size()), s.queries = queries;
    if (together > s.together) s.parts = zeros(together * state_size()), s.scores = zeros(together * SPLIT), s.together = together;
    s.list.reserve(together);
  }
}

// One head's keys and values of a split's first `count` positions, as floats; keys with the positions side by side, as
// scores need them. Meanwhile the first `next` positions of the split after it are asked for from memory, with all heads of
// the task (slots lie anywhere: the processor does not foresee them); each head of the task asks for its share, so that
// memory is read in order.
template <class T>
void Attention::load_split(Scratch& s, const Layer<T>& layer, const int32_t* slots, int split, int count, int next, int head, Range heads) const {
  constexpr int GROUP = 8;
  int size = heads_.size, asked = heads.count * size;
  const int32_t* slot = slots + split * SPLIT;
  const T *k[GROUP], *v;
  for (int p = 0; p < count; p++) {
    int turn = (head - heads.first) * SPLIT + p;
    if (turn % heads.count == 0 && turn / heads.count < next) {
      int64_t at = ((int64_t)slot[SPLIT + turn / heads.count] * heads_.keys + heads.first) * size;
      for (int d = 0; d < asked; d += LINE / (int)sizeof(T)) __builtin_prefetch(layer.k + at + d, 0, 2), __builtin_prefetch(layer.v + at + d, 0, 2);
    }
    int64_t at = ((int64_t)slot[p] * heads_.keys + head) * size;
    k[p % GROUP] = layer.k + at, v = layer.v + at;
    float* values = s.values.get() + p * padded_;
    int d = 0;
    for (; d + VL <= size; d += VL) store(values + d, load(v + d));
    for (; d < size; d++) values[d] = to_float(v[d]);
    if (p % GROUP < GROUP - 1 && p < count - 1) continue;
    for (int i = p % GROUP + 1; i < GROUP; i++) k[i] = k[0];  // fills up the group; nobody looks at these scores
    float* keys = s.keys.get() + p / GROUP * GROUP;
    for (d = 0; d + GROUP <= size; d += GROUP, keys += GROUP * SPLIT) {
      transpose8(k, keys, SPLIT);
      for (auto& row : k) row += GROUP;
    }
    for (; d < size; d++, keys += SPLIT)
      for (int i = 0; i < GROUP; i++) keys[i] = to_float(*k[i]++);
  }
}

// Notes query `index` of the task as one that sees `count` positions of the current split, if it sees any.
inline void Attention::add_query(Scratch& s, int index, int count, float* part) const {
  if (count) s.list.push_back({s.q.get() + index * padded_, s.scores.get() + s.list.size() * SPLIT, part, count, index});
}

// Scaled queries of one row, for the key-value heads of the task: `ratio` query heads each, side by side.
template <class T> void Attention::load_queries(float* to, const Layer<T>& layer, int row, Range heads) const {
  const float* from = layer.q + row * layer.stride + heads.first * ratio() * heads_.size;
  for (int h = 0; h < heads.count * ratio(); h++, to += padded_, from += heads_.size)
    for (int d = 0; d < heads_.size; d++) to[d] = from[d] * layer.scale;
}

template <class T> void Attention::ahead(const Ahead& task, const Layer<T>& layer, Scratch& s) {
  Range heads{0, heads_.keys};
  const Row* rows = rows_.data() + task.row;
  int last_position = 0;
  for (int r = 0; r < task.rows; r++) {
    load_queries(s.q.get() + r * heads_.queries * padded_, layer, rows[r].index, heads);
    last_position = std::max(last_position, rows[r].position);
  }
  for (int split = task.first; split < task.last; split++) {
    int next = split + 1 < task.last ? seen(last_position, split + 1) : 0;
    for (int head = 0; head < heads_.keys; head++) {
      load_split(s, layer, task.slots, split, seen(last_position, split), next, head, heads);
      s.list.clear();
      for (int r = 0; r < task.rows; r++) {
        int64_t at = task.entry + (split - task.first) * task.pitch + r;
        for (int h = head * ratio(); h < (head + 1) * ratio(); h++) add_query(s, r * heads_.queries + h, seen(rows[r].position, split), entry(at, h));
      }
      attend(s.list.data(), (int)s.list.size(), s.keys.get(), s.values.get(), heads_.size, padded_);
    }
  }
}

template <class T> void Attention::own(const Own& task, const Layer<T>& layer, Scratch& s) {
  Range heads = task.heads;
  int queries = heads.count * ratio();  // of a row
  for (int r = 0; r < task.rows; r++) load_queries(s.q.get() + r * queries * padded_, layer, task.row.index + r, heads);
  for (int i = 0; i < task.rows * queries; i++) clear(s.states.get() + i * state_size(), padded_);
  int last_position = task.row.position + task.rows - 1;
  for (int split = 0; split * SPLIT <= last_position; split++) {
    int64_t found = found_[task.found + split];
    for (int head = heads.first; head < heads.first + heads.count; head++) {
      s.list.clear();
      for (int r = 0; r < task.rows; r++)
        for (int h = head * ratio(); h < (head + 1) * ratio(); h++) {
          float* part = found >= 0 ? entry(found + task.offset + r, h) : s.parts.get() + s.list.size() * state_size();
          add_query(s, r * queries + h - heads.first * ratio(), seen(task.row.position + r, split), part);
        }
      if (found < 0) {
        load_split(s, layer, task.slots, split, seen(last_position, split), seen(last_position, split + 1), head, heads);
        attend(s.list.data(), (int)s.list.size(), s.keys.get(), s.values.get(), heads_.size, padded_);
      }
      for (const Query& query : s.list) merge(s.states.get() + query.index * state_size(), query.part, padded_);
    }
  }
  for (int r = 0; r < task.rows; r++) {
    float* out = layer.out + (task.row.index + r) * layer.out_stride + heads.first * ratio() * heads_.size;
    for (int h = 0; h < queries; h++, out += heads_.size) {
      const float* state = s.states.get() + (r * queries + h) * state_size();
      float inverse = 1.f / state[1];
      for (int d = 0; d < heads_.size; d++) out[d] = state[2 + d] * inverse;
    }
  }
}

template <class T> void Attention::run_as(Pool& pool, const Layer<T>& layer) {
  pool.run((int)ahead_.size(), [&](int i, int thread) { ahead(ahead_[i], layer, scratch_[thread]); });
  pool.run((int)own_.size(), [&](int i, int thread) { own(own_[i], layer, scratch_[thread]); });
}

void Attention::run(Pool& pool, Cache type, const float* q, int64_t stride, const void* k, const void* v, float scale, float* out,
                    int64_t out_stride) {
  if (type == Cache::F32) run_as<float>(pool, {q, stride, (const float*)k, (const float*)v, scale, out, out_stride});
  if (type == Cache::F16) run_as<half>(pool, {q, stride, (const half*)k, (const half*)v, scale, out, out_stride});
  if (type == Cache::BF16) run_as<bfloat>(pool, {q, stride, (const bfloat*)k, (const bfloat*)v, scale, out, out_stride});
}

}  // namespace ramet
