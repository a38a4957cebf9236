// Attention over a paged cache with pages of one slot, for any ragged mix of rows.
//
// The positions of a context are cut into splits of 64. A row's result is the merge, in order of position, of what each split
// gives it: (largest score, sum of exponentials, weighted sum of values). A split's part depends on the row and the split
// alone, so it may be computed anywhere: by the row's own task, or ahead of it, together with the rows of all sequences that
// share the split (tree attention: keys and values are read once for all), or to spread a long context over the threads.
// The bits of the result are the same in each case. A split that only partly lies in a shared segment is not shared.
#pragma once
#include <vector>

#include "matrix.h"

namespace ramet {

enum class Cache : int { F32, F16, BF16 };  // numbers of the pool

struct Meta {  // interface.AttnMeta; without segments their number is 0 and their fields are null
  int sequences, segments;
  int64_t table_stride;
  const int32_t *query_start, *context_len, *tables;
  const int32_t *start, *stop, *owner, *member_start, *members;
};

// What is wrong with a pass over a pool of so many slots, or null.
const char* check(const Meta& meta, int rows, int64_t slots);

struct Heads { int queries, keys, size; };  // query heads, key-value heads, numbers of a head

constexpr int SPLIT = 64;

struct Query {   // against one split
  const float* q;
  float* scores; // SPLIT numbers of room
  float* part;   // largest score, sum of exponentials, weighted sum of values
  int count;     // positions of the split that it sees, at least 1
  int index;     // in its task
};

class Attention {
 public:
  Attention(Heads heads, int threads);

  // Cuts a pass into tasks; `run` may then be called for every layer. Takes all memory that they need.
  void plan(const Meta& meta);
  // q and out: (rows, query heads, size), rows `stride` and `out_stride` numbers apart. k, v: (slots, key-value heads, size).
  void run(Pool& pool, Cache type, const float* q, int64_t stride, const void* k, const void* v, float scale, float* out, int64_t out_stride);

 private:
  struct Range { int first, count; };
  struct Row { int index, position; };  // in the pass, in its sequence
  struct Ahead {                        // splits first..last-1 for rows_[row..row+rows-1]
    const int32_t* slots;               // by position
    int first, last, row, rows;
    int64_t entry, pitch;               // where the first row's part of the first split goes; from one split to the next
  };
  struct Own {                          // consecutive rows of one sequence, and some of its key-value heads
    const int32_t* slots;
    Row row;
    int rows;
    Range heads;
    int64_t found, offset;              // found_[found + split], and the first row's place among the sequence's rows
  };
  struct Scratch {                      // of a thread
    Buffer<float> keys, values;         // of a split and a head
    Buffer<float> q, states;            // of all queries of a task
    Buffer<float> scores, parts;        // of those of one key-value head
    std::vector<Query> list;
    int queries = 0, together = 0;
  };
  template <class T> struct Layer {
    const float* q; int64_t stride; const T *k, *v; float scale; float* out; int64_t out_stride;
  };

  void add_ahead(const Meta& meta, const int32_t* slots, int first, int last, int run, const int32_t* members, int count);
  void share(const Meta& meta);
  void spread(const Meta& meta);
  void reserve(int queries, int together);
  template <class T>
  void load_split(Scratch& s, const Layer<T>& layer, const int32_t* slots, int split, int count, int next, int head, Range heads) const;
  void add_query(Scratch& s, int index, int count, float* part) const;
  template <class T> void load_queries(float* to, const Layer<T>& layer, int row, Range heads) const;
  template <class T> void ahead(const Ahead& task, const Layer<T>& layer, Scratch& s);
  template <class T> void own(const Own& task, const Layer<T>& layer, Scratch& s);
  template <class T> void run_as(Pool& pool, const Layer<T>& layer);

  int ratio() const { return heads_.queries / heads_.keys; }
  int64_t state_size() const { return padded_ + 2; }  // largest score, sum, then the weighted values
  float* entry(int64_t i, int query_head) const { return parts_.get() + (i * heads_.queries + query_head) * state_size(); }

  Heads heads_;
  int threads_, padded_;  // numbers of a head, up to whole vectors
  std::vector<Row> rows_;
  std::vector<Ahead> ahead_;
  std::vector<Own> own_;
  std::vector<int64_t> found_, found_start_;  // by sequence and split: the entry of the sequence's first row, or -1
  int64_t entries_ = 0, room_ = 0;
  Buffer<float> parts_;
  std::vector<Scratch> scratch_;
};

}  // namespace ramet
