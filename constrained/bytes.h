// From code points to bytes: the lazily built byte automaton of regular terms, the token trie, and the masks that terms decide alone.
//
// One Store per vocabulary serves every grammar: a JSON string, a number or a date is the same states and masks in all schemas.
#pragma once
#include <array>

#include "terms.h"

namespace ramet {

using Bits = std::vector<u32>;

struct TrieNode {
    i32 end;    // the subtree of node n is n..end, in preorder
    i32 first;  // tokens that end here: ids[first] up to the next node's first
    uint16_t height, depth;  // longest path below, and from the root, in bytes
    uint8_t byte;            // on the edge into the node
};

class ByteSet {
public:
    void set(size_t b) { words_[b >> 6] |= 1ull << (b & 63); }
    bool has(size_t b) const { return words_[b >> 6] >> (b & 63) & 1; }
    ByteSet& operator|=(const ByteSet& o) {
        for (int i = 0; i < 4; i++) words_[i] |= o.words_[i];
        return *this;
    }
    bool meets(const ByteSet& o) const {
        u64 shared = 0;
        for (int i = 0; i < 4; i++) shared |= words_[i] & o.words_[i];
        return shared != 0;
    }
    int count() const {
        int n = 0;
        for (u64 w : words_) n += __builtin_popcountll(w);
        return n;
    }
    template <class F> void each(F&& visit) const {  // in order
        for (size_t i = 0; i < 4; i++)
            for (u64 left = words_[i]; left; left &= left - 1) visit(uint8_t(64 * i + size_t(__builtin_ctzll(left))));
    }

private:
    u64 words_[4] = {0, 0, 0, 0};
};

// A set of ASCII bytes. Bit 0 stands for all others, and for NUL.
struct AsciiSet {
    u64 low = 0, high = 0;
    void add(uint8_t b) {
        if (b < 64 || b >= 128) low |= 1ull << (b < 64 ? b : 0);
        else high |= 1ull << (b - 64);
    }
    void add(const AsciiSet& o) { low |= o.low, high |= o.high; }
    bool within(const AsciiSet& o) const { return ((low & ~o.low) | (high & ~o.high)) == 0; }
    bool has(uint8_t b) const { return (b < 64 ? low >> b : high >> (b - 64)) & 1; }
};

// Trie of the vocabulary, in preorder, with one node more behind the last.
struct Trie {
    std::vector<TrieNode> nodes;
    std::vector<i32> parent, ids;
    std::vector<uint16_t> length;  // of the token ids[i], in bytes
    std::vector<AsciiSet> below;   // the bytes in the subtree under a node
    std::vector<i32> child, kids;  // children of a node, by byte: kids[child[n]..child[n + 1]]
    Trie(i32 n_tokens, const uint8_t* text, const int64_t* offset);
    const TrieNode& operator[](i32 n) const { return nodes[size_t(n)]; }
    i32 size() const { return i32(parent.size()); }
    i32 height() const { return nodes[0].height; }  // bytes of the longest token
    bool holds(i32 n) const { return nodes[size_t(n)].first < nodes[size_t(n) + 1].first; }
    i32 find(i32 n, uint8_t b) const;
    template <class F> void each_id(i32 n, F&& visit) const { each_id(n, n + 1, visit); }
    template <class F> void each_id(i32 n, i32 stop, F&& visit) const {
        for (i32 i = nodes[size_t(n)].first, end = nodes[size_t(stop)].first; i < end; i++) visit(ids[size_t(i)]);
    }
};

// A state of a term between two bytes: at a character's border (node >= 0), or inside one, with `left` bytes to come whose bits lie in `tail`.
struct TState {
    i32 node = -1;
    uint8_t left = 0;
    bool accept = false, expanded = false;
    int8_t wide = -1;   // once known
    int16_t mode = -1;  // a byte whose target most bytes share, or -1
    i32 fan = 0;        // live bytes: how many, and which
    ByteSet live;
    Edges tail;
    std::vector<std::pair<uint8_t, i32>> few;  // byte -> state, while there are few
    std::unique_ptr<i32[]> table;              // else all 256: -1 dead, -2 live but not made yet
    AsciiSet loop;                             // bytes that lead back to the state
    u32 dist = kFar + 1;
    i32 canon = -1;
    std::unique_ptr<struct Inner> inner;
};

// What a term decides alone: the ids that stay inside it, and where the others leave it.
struct Inner {
    Bits bits;
    std::array<i32, 257> first{};  // leaves[first[b]..first[b + 1]]: trie nodes entered by b, dead here, whose parent accepts
    std::vector<i32> leaves;
    ByteSet inside;       // bytes that may be taken after an accepting state, other than a leaf's
    u32 far = 0;                   // no id is followed by a longer way to acceptance, in bytes
    // Of an unbounded repeat of characters, for its bounded kin: how many each id takes (largest first), and the way to each leaf.
    std::vector<std::pair<i32, i32>> counts;
    std::vector<i32> leaf_counts;
    std::vector<i32> ways;         // trie nodes on the way to leaves, in preorder
};

class Store {
public:
    Terms terms;
    const Trie trie;
    const i32 n_tokens;
    const i32 words;
    ByteSet single;   // bytes that are tokens of their own
    bool continuations = true;  // all that go on a character are
    u64 bytes = 0;

    Store(i32 n, const uint8_t* text, const int64_t* offset);
    std::pair<const uint8_t*, const uint8_t*> token(i32 id) const { return {text_.data() + offset_[size_t(id)], text_.data() + offset_[size_t(id) + 1]}; }
    i32 border(i32 node);  // the state at a character's border
    const TState& expanded(i32 s);
    const TState& at(i32 s) const { return (*states_[size_t(s)]); }
    i32 next(i32 s, uint8_t b) {
        const TState& t = states_[size_t(s)]->expanded ? (*states_[size_t(s)]) : expanded(s);
        if (t.table) return t.table[b] == -2 ? made(s, b) : t.table[b];
        for (auto [byte, to] : t.few)
            if (byte == b) return to;
        return -1;
    }
    bool goes_on(i32 s) {  // whether a byte may follow
        i32 n = states_[size_t(s)]->node;
        return n < 0 || (n != Terms::kEmpty && (!terms[n].logic || !terms.edges(n).empty()));
    }
    u32 dist(i32 s);
    i32 canon(i32 s);  // the state with the same masks whose counters are no longer than any token can count
    bool wide(i32 s);  // whether its mask is worth keeping: many ids lie in it, not a few along a literal
    const Inner& inner(i32 s);
    u64 held() const { return bytes + terms.bytes; }

private:
    std::vector<uint8_t> text_;
    std::vector<int64_t> offset_;
    std::vector<std::unique_ptr<TState>> states_;
    std::vector<i32> by_node_;
    std::map<std::vector<u32>, i32> by_tail_;
    std::vector<uint8_t> spare_mark_;  // one flag a trie node, all 0: lent to the mask being made

    struct Leaf {
        uint8_t byte;
        i32 node, count;
    };
    struct Building;  // an Inner and its leaves
    i32 inside(uint8_t left, Edges tail);
    void expand(i32 s);
    i32 made(i32 s, uint8_t b);
    Edges tail_after(i32 s, uint8_t b);
    i32 shortened(i32 node, i32 height);
    i32 without_far_length(i32 node, i32 height);
    i32 base(i32 s);
    void walk(Building& out, i32 root, i32 s);
    void bounded(Building& out, i32 s, const Node& repeat);
    void differ(Building& out, i32 s, i32 x);
    void differ(Building& out, i32 n, i32 s, i32 x);
    void like_anything(Building& out, i32 s, u32 far);
    void trace(Building& out, i32 s);
};

}  // namespace ramet
