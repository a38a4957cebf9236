// The masks that terms decide alone. A new one is rarely walked over the whole vocabulary: a bounded repeat is its unbounded kin less the
// ids that take too many characters; a term that any text may begin differs from any text only in where it accepts; and a term that most
// bytes turn into a known one differs from it only where they part.
#include "bytes.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ramet {

struct Store::Building {
    Inner inner;
    std::vector<Leaf> leaves;
    std::vector<uint8_t> mark;  // a flag a trie node
    std::vector<i32> marked;    // those that are set
    AsciiSet looped;          // of accepting states
    i32 counted = -1;         // the state that each character of an unbounded repeat comes back to

    void set(i32 n) {
        mark[size_t(n)] = 1;
        marked.push_back(n);
    }

    void sort_counts() {  // by count, largest first; counts are small
        std::vector<size_t> start(2, 0);
        for (auto [count, _] : inner.counts) {
            if (size_t(count) + 2 > start.size()) start.resize(size_t(count) + 2, 0);
            start[size_t(count)]++;
        }
        size_t before = 0;
        for (size_t c = start.size(); c-- > 0;) before += std::exchange(start[c], before);
        std::vector<std::pair<i32, i32>> sorted(inner.counts.size());
        for (auto& pair : inner.counts) sorted[start[size_t(pair.first)]++] = pair;
        inner.counts = std::move(sorted);
    }

    // All ids of nodes n..stop, which lie in the loop of t. `before`: characters less bytes on the way there, or -1 if they are not counted.
    void take(const Trie& trie, i32 n, i32 stop, const TState& t, i32 before) {
        for (i32 i = trie[n].first; i < trie[stop].first; i++) {
            i32 id = trie.ids[size_t(i)];
            inner.bits[size_t(id) >> 5] |= 1u << (id & 31);
            if (counted >= 0) inner.counts.push_back({before + trie.length[size_t(i)], id});
        }
        if (t.accept) looped.add(t.loop);
    }

    void put(const Trie& trie, i32 n, i32 stop, bool on) {
        trie.each_id(n, stop, [&](i32 id) {
            u32 bit = 1u << (id & 31);
            if (on) inner.bits[size_t(id) >> 5] |= bit;
            else inner.bits[size_t(id) >> 5] &= ~bit;
        });
    }
};

// Everything below a trie node. A state's way on is looked up once a node, and a dead edge skips its subtree.
void Store::walk(Building& out, i32 root, i32 s) {
    struct Place { const TState* t; i32 s, count; };
    std::vector<Place> path(size_t(trie[root].height) + 1);
    path[0] = {&expanded(s), s, 0};
    i32 last = -1;
    for (i32 n = root + 1, end = trie[root].end; n < end;) {
        const TrieNode& node = trie[n];
        size_t depth = size_t(node.depth - trie[root].depth);
        const Place& from = path[depth - 1];
        i32 to = from.t->table ? from.t->table[node.byte] : next(from.s, node.byte);
        if (to == -2) to = made(from.s, node.byte);
        if (to < 0) {
            if (from.t->accept && (root || depth > 1)) out.leaves.push_back({node.byte, n, from.count});
            n = node.end;
            continue;
        }
        if (from.t->accept && (root || depth > 1)) out.inner.inside.set(node.byte);
        i32 count = from.count + (to == out.counted);
        if (trie.holds(n)) {
            out.put(trie, n, n + 1, true);
            if (to != last) out.inner.far = std::max(out.inner.far, dist(last = to));
            if (out.counted >= 0) trie.each_id(n, [&](i32 id) { out.inner.counts.push_back({count + (to != out.counted), id}); });
        }
        if ((n++ & 255) == 0) terms.rest();
        if (!node.height) continue;
        const TState* t = to == from.s ? from.t : &expanded(to);
        if (const AsciiSet& below = trie.below[size_t(n) - 1]; below.within(t->loop)) {  // nothing below leaves the state
            out.take(trie, n, node.end, *t, to == out.counted ? count - node.depth : -1);
            out.inner.far = std::max(out.inner.far, dist(to));
            n = node.end;
        } else path[depth] = {t, to, count};
    }
}

void Store::bounded(Building& out, i32 s, const Node& repeat) {
    bool json = terms[states_[size_t(s)]->node].op == Op::Json;
    i32 lo = repeat.b, hi = repeat.c, plain = terms.rep(repeat.a, 0, kUnbounded);
    i32 kin = border(json ? terms.json(plain) : plain);
    const Inner& other = inner(kin);
    out.inner.bits = other.bits, out.inner.inside = other.inside, out.inner.far = other.far + dist(s);
    if (hi != kUnbounded) {
        for (auto [count, id] : other.counts) {
            if (count <= hi) break;
            out.inner.bits[size_t(id) >> 5] &= ~(1u << (id & 31));
        }
        for (int b = 0; b < 256; b++)  // where the count is full, these leave the repeat too
            if (next(kin, uint8_t(b)) >= 0) out.inner.inside.set(size_t(b));
    }
    for (i32 b = 0; b < 256; b++)
        for (i32 i = other.first[size_t(b)]; i < other.first[size_t(b) + 1]; i++)
            if (i32 count = other.leaf_counts[size_t(i)]; lo <= count && (hi == kUnbounded || count <= hi))
                out.leaves.push_back({uint8_t(b), other.leaves[size_t(i)], 0});
}

// A term that any text may begin: the ids of any text, and the leaves where it accepts.
void Store::like_anything(Building& out, i32 s, u32 far) {
    bool json = terms[states_[size_t(s)]->node].op == Op::Json;
    const Inner& other = inner(border(json ? terms.json(terms.any_string) : terms.any_string));
    out.inner.bits = other.bits, out.inner.inside = other.inside, out.inner.far = other.far + far;
    std::vector<i32> path(size_t(trie.height()) + 1, s);
    for (i32 n : other.ways) {
        i32 to = next(path[size_t(trie[n].depth) - 1], trie[n].byte);
        path[trie[n].depth] = to;
        if (states_[size_t(to)]->accept) out.set(n);
    }
    for (i32 b = 0; b < 256; b++)
        for (i32 i = other.first[size_t(b)]; i < other.first[size_t(b) + 1]; i++)
            if (i32 n = other.leaves[size_t(i)]; out.mark[size_t(trie.parent[n])]) out.leaves.push_back({uint8_t(b), n, 0});
}

void Store::differ(Building& out, i32 s, i32 x) {
    const Inner& other = inner(x);
    out.inner.bits = other.bits, out.inner.inside = other.inside, out.inner.far = other.far;
    differ(out, 0, s, x);
    for (i32 b = 0; b < 256; b++)
        for (i32 i = other.first[size_t(b)]; i < other.first[size_t(b) + 1]; i++)
            if (i32 n = other.leaves[size_t(i)]; !out.mark[size_t(trie.parent[n])]) out.leaves.push_back({uint8_t(b), n, 0});
}

void Store::differ(Building& out, i32 n, i32 s, i32 x) {
    const TState& t = expanded(s);
    auto mark = [&](i32 from, i32 to) {
        for (i32 i = from; i < to; i++) out.set(i);
    };
    mark(n, n + 1);
    for (i32 c = n + 1; c < trie[n].end; c = trie[c].end) {
        i32 to = next(s, trie[c].byte), other = next(x, trie[c].byte);
        if (to < 0) {
            if (t.accept && n) out.leaves.push_back({trie[c].byte, c, 0});
            if (other >= 0) out.put(trie, c, trie[c].end, false), mark(c, trie[c].end);
            continue;
        }
        if (t.accept && n) out.inner.inside.set(trie[c].byte);
        if (to == other) continue;
        if (trie.holds(c)) out.inner.far = std::max(out.inner.far, dist(to));
        if (other >= 0) differ(out, c, to, other);
        else out.put(trie, c, c + 1, true), walk(out, c, to);
    }
}

i32 Store::base(i32 s) {  // a state that most bytes lead to, and stay in; -1: none
    i32 mode = expanded(s).mode;
    if (states_[size_t(s)]->node < 0 || mode < 0) return -1;
    i32 x = next(s, uint8_t(mode));
    if (x == s || states_[size_t(x)]->node < 0) return -1;
    i32 again = expanded(x).mode;
    return states_[size_t(x)]->inner || (again >= 0 && next(x, uint8_t(again)) == x) ? x : -1;
}

// The nodes above the leaves.
void Store::trace(Building& out, i32 s) {
    if (terms[states_[size_t(s)]->node].op == Op::Json ? terms[states_[size_t(s)]->node].a != terms.any_string : states_[size_t(s)]->node != terms.any_string) return;
    for (i32 leaf : out.inner.leaves)
        for (i32 n = trie.parent[leaf]; n > 0 && !out.mark[size_t(n)]; n = trie.parent[n]) out.set(n);
    std::sort(out.marked.begin(), out.marked.end());
    out.inner.ways = out.marked;
}

const Inner& Store::inner(i32 s) {
    if (states_[size_t(s)]->inner) return *states_[size_t(s)]->inner;
    Building out;
    out.mark = spare_mark_.empty() ? std::vector<uint8_t>(size_t(trie.size()), 0) : std::move(spare_mark_);
    spare_mark_.clear();
    i32 node = states_[size_t(s)]->node;
    const Node* n = node < 0 ? nullptr : &terms[terms[node].op == Op::Json ? terms[node].a : node];
    bool repeat = n && n->op == Op::Rep && terms[n->a].op == Op::Chars;
    bool json = node >= 0 && terms[node].op == Op::Json;
    u32 anything = n && !repeat ? terms.begun_by_anything(json ? terms[node].a : node, json) : kFar;
    if (repeat && (n->b > 0 || n->c != kUnbounded)) bounded(out, s, *n);
    else if (anything < kFar) like_anything(out, s, anything);
    else if (i32 x = repeat ? -1 : base(s); x >= 0) differ(out, s, x);
    else {
        if (repeat) out.counted = s, out.inner.counts.reserve(trie.ids.size());
        out.inner.bits.assign(size_t(words), 0);
        walk(out, 0, s);
        out.sort_counts();
    }
    Inner& made = out.inner;
    for (int b = 1; b < 128; b++)
        if (out.looped.has(uint8_t(b))) made.inside.set(size_t(b));
    for (auto& leaf : out.leaves) made.first[size_t(leaf.byte) + 1]++;
    std::partial_sum(made.first.begin(), made.first.end(), made.first.begin());
    std::vector<i32> at(made.first.begin(), made.first.end());
    made.leaves.resize(out.leaves.size());
    made.leaf_counts.resize(out.counted >= 0 ? out.leaves.size() : 0);
    for (auto& leaf : out.leaves) {
        i32 i = at[leaf.byte]++;
        made.leaves[size_t(i)] = leaf.node;
        if (out.counted >= 0) made.leaf_counts[size_t(i)] = leaf.count;
    }
    if (repeat) trace(out, s);
    bytes += 4 * (made.bits.size() + made.leaves.size() + made.leaf_counts.size() + made.ways.size() + 2 * made.counts.size()) + sizeof(Inner);
    for (i32 i : out.marked) out.mark[size_t(i)] = 0;
    spare_mark_ = std::move(out.mark);
    auto& kept = states_[size_t(s)]->inner;
    if (!kept) kept = std::make_unique<Inner>(std::move(made));  // else another call was quicker, while this one rested
    return *kept;
}

}  // namespace ramet
