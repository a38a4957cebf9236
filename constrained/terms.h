// Regular terms over code points: hash-consed nodes and their derivatives (Brzozowski 1964; classes as in Owens et al. 2009).
//
// A node is a language. edges(n) lists, for disjoint ranges of code points, the node that remains after one of them; only live
// nodes (that still reach acceptance) are listed. Counters are numbers in nodes, so a{0,100000} costs one node per count visited.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace ramet {

using i32 = int32_t;
using u32 = uint32_t;
using u64 = uint64_t;
constexpr i32 kUnbounded = -1;       // hi of a repeat
constexpr u32 kFar = 1u << 30;       // a distance: not reachable
constexpr u32 kLastCodePoint = 0x10FFFF;

struct Limit : std::runtime_error { using std::runtime_error::runtime_error; };
struct Invalid : std::runtime_error { using std::runtime_error::runtime_error; };

// Hash table of numbers: what they stand for lies elsewhere. Growing it moves eight bytes an entry, so no call pays much for it.
class Index {
public:
    template <class Same> i32 find(u64 hash, Same&& same) const {  // -1: none
        for (size_t i = start(hash);; i = (i + 1) & (slots_.size() - 1)) {
            if (slots_[i].id < 0) return -1;
            if (slots_[i].hash == u32(hash >> 32) && same(slots_[i].id)) return slots_[i].id;
        }
    }
    void add(u64 hash, i32 id) {
        if (2 * ++used_ > slots_.size()) {
            std::vector<Slot> old(2 * slots_.size(), Slot{0, -1});
            old.swap(slots_);
            for (auto& slot : old)
                if (slot.id >= 0) put(slot);
        }
        put({u32(hash >> 32), id});
    }

private:
    struct Slot { u32 hash; i32 id; };
    std::vector<Slot> slots_ = std::vector<Slot>(64, Slot{0, -1});
    size_t used_ = 0;
    size_t start(u64 hash) const { return size_t(hash >> 32) & (slots_.size() - 1); }
    void put(Slot slot) {
        size_t i = slot.hash & (slots_.size() - 1);
        while (slots_[i].id >= 0) i = (i + 1) & (slots_.size() - 1);
        slots_[i] = slot;
    }
};

inline u64 mixed(u64 h, u64 more) {
    h = (h ^ more) * 0xff51afd7ed558ccdull;
    return h ^ h >> 29;
}

enum class Op : uint8_t { Nothing, Empty, Lit, Set, Chars, Seq, Alt, Rep, Both, Not, Json, Esc, Hex, Low, Compare, Multiple };

struct Edge { u32 lo, hi; i32 to; };
using Edges = std::vector<Edge>;
using Text = std::u32string;
using Ranges = std::vector<std::pair<u32, u32>>;

using Digits = std::vector<i32>;

struct Bound {  // of numerals, as a decimal; wanted: 1 those that are less, 2 equal, 4 more
    bool negative;
    Digits whole, point;
    i32 wanted;
    bool operator<(const Bound& o) const { return std::tie(negative, whole, point, wanted) < std::tie(o.negative, o.whole, o.point, o.wanted); }
};

struct Step {  // of numerals: modulus / 10^places; wanted: its multiples, else all others
    u64 modulus;
    i32 places;
    bool wanted;
    bool decimal() const {  // a power of ten
        u64 m = modulus;
        while (m % 10 == 0) m /= 10;
        return m == 1;
    }
    bool operator<(const Step& o) const { return std::tie(modulus, places, wanted) < std::tie(o.modulus, o.places, o.wanted); }
};

// Lit: a = text, b = position. Set: a = sorted texts, b..c = those still possible, d = characters read. Chars: a = class.
// Seq: a then b. Rep: a, b..c times. Not, Json: a. Alt, Both: kids, sorted.
// Compare: a = bound, b = digits read since the point (or the start), c = order of the magnitudes, d = 1 minus read, 2 point read.
// Multiple: a = step, b = digits read after the point (-1 before it), c and d = remainder.
// Json spelling states over a: Esc after a backslash; Hex: b digits read of value c; Low: b = high surrogate, c = step, d = value.
struct Node {
    Op op = Op::Nothing;
    bool nullable = false, logic = false, expanded = false;
    int8_t alive = -1;  // 1 or 0 once known
    i32 a = 0, b = 0, c = 0, d = 0;
    std::vector<i32> kids;
    Edges edges;
    u32 stretch = kFar + 1;
    u32 dist[2] = {kFar + 1, kFar + 1};  // fewest bytes to the end, raw and as a JSON string; kFar + 1: not known yet
};

// One lock guards the terms and the store around them; it is held by every call but those that only look up what is known.
class Terms {
public:
    static constexpr i32 kNothing = 0, kEmpty = 1;
    i32 any_char, any_string;
    u64 bytes = 0;  // held, roughly

    // The work of the call that holds the lock: what passes its limits is refused. The clock is read once in a thousand steps only.
    struct Work {
        double seconds = 1e9, deadline = 0;
        u64 byte_limit = ~0ull, ticks = 0;
        u64 others = 0;  // bytes that other calls added while this one rested
    };
    Work work;
    void tick() {
        if ((++work.ticks & 1023) == 0) check_clock();
    }
    // Called where nothing is half made: a long call lets those that wait have the lock for a while.
    void rest() {
        if (waiting.load(std::memory_order_relaxed) > 0) give_way();
    }
    std::mutex lock;
    std::atomic<int> waiting{0};

    Terms();
    const Node& operator[](i32 n) const { return nodes_[n]; }
    const Ranges& ranges(i32 cls) const { return classes_[cls]; }

    i32 lit(const Text& text);
    i32 set(std::vector<Text> texts);
    i32 chars(const Ranges& ranges);
    i32 seq(i32 a, i32 b);
    i32 alt(const std::vector<i32>& kids);
    i32 rep(i32 a, i32 lo, i32 hi);
    i32 both(const std::vector<i32>& kids);
    i32 negate(i32 a);
    i32 json(i32 a);
    i32 compare(const Bound& bound);
    i32 multiple(const Step& step);

    const Edges& edges(i32 n);  // live ones
    bool alive(i32 n);
    u32 dist(i32 n, bool json = false);
    // Where any text may begin a string of n: no text leaves more bytes to its end than this. Else, or not seen to be so: kFar.
    u32 begun_by_anything(i32 n, bool json);
    u32 stretch(i32 n);  // no text in n is further from an end than so many characters; kFar: not seen to be so
    size_t size() const { return nodes_.size(); }

private:
    void check_clock();
    void give_way();
    std::deque<Node> nodes_;
    Index index_;
    std::deque<Text> texts_;
    std::map<Text, i32> text_index_;
    std::deque<std::vector<Text>> sets_;
    std::map<std::vector<Text>, i32> set_index_;
    std::deque<Ranges> classes_;
    std::map<Ranges, i32> class_index_;

    std::vector<Bound> bounds_;
    std::map<Bound, i32> bound_index_;
    std::vector<Step> steps_;
    std::map<Step, i32> step_index_;

    i32 make(Node node);
    i32 node(Op op, bool nullable, bool logic, i32 a = 0, i32 b = 0, i32 c = 0, i32 d = 0);
    i32 lit_at(i32 text, i32 at);
    i32 set_at(i32 set, i32 lo, i32 hi, i32 depth);
    const Edges& raw_edges(i32 n);
    Edges derive(i32 n);
    Edges derive_set(const Node& n);
    Edges derive_json(const Node& n);
    Edges derive_numeral(i32 id);
    i32 compare_at(i32 bound, bool negative, bool fraction, i32 position, i32 order);
    i32 compare_after(i32 id, char c);
    i32 decided(const Bound& bound, bool negative, i32 order) const;
    i32 multiple_at(i32 step, i32 read, u64 remainder);
    i32 multiple_after(i32 id, char c);
    u32 multiple_dist(i32 id);
    i32 hex(i32 a, i32 digits, i32 value);
    i32 low(i32 a, i32 high, i32 step, i32 value);
    i32 target(i32 a, u32 code_point);
    bool meets(i32 a, u32 lo, u32 hi);
    u32 at_least(i32 n, bool json);
    u32 nearest(i32 a, u32 lo, u32 hi);
    bool finite(i32 n) const;
    u32 search(i32 n, bool json);
    Edges overlay(const std::vector<const Edges*>& parts, const std::function<i32(const std::vector<i32>&)>& join);
};

inline void add_edge(Edges& out, u32 lo, u32 hi, i32 to) {  // out: in order
    if (to == Terms::kNothing) return;
    if (!out.empty() && out.back().to == to && out.back().hi + 1 == lo) out.back().hi = hi;
    else out.push_back({lo, hi, to});
}

}  // namespace ramet
