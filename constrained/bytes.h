// From code points to bytes: the lazily built byte automaton of regular terms, the token trie, and the masks that terms decide alone.
//
// One Store per vocabulary serves every grammar: a JSON string, a number or a date is the same states and masks in all schemas.
#pragma once
#include <array>
#include <bitset>
#include <mutex>

#include "terms.h"

namespace ramet {

using Bits = std::vector<u32>;

// Trie of the vocabulary in preorder: the subtree of node n is n..end[n], its tokens are ids[first[n]..first[end[n]]].
struct Trie {
    std::vector<uint8_t> byte;       // on the edge into a node
    std::vector<i32> end, parent;    // end: one past the subtree
    std::vector<i32> height;         // longest path below, in bytes
    std::vector<i32> first, ids;     // tokens that end at a node: ids[first[n]..first[n + 1]]
    std::vector<i32> child, kids;    // children of a node, by byte: kids[child[n]..child[n + 1]]
    Trie(i32 n_tokens, const uint8_t* text, const int64_t* offset);
    i32 find(i32 n, uint8_t b) const;
    size_t size() const { return byte.size(); }
};

// A state of a term between two bytes: at a character's border (node >= 0), or inside one, with `left` bytes to come whose bits lie in `tail`.
struct TState {
    i32 node = -1;
    uint8_t left = 0;
    bool accept = false, expanded = false;
    int16_t mode = -1;  // a byte whose target most bytes share, or -1
    i32 fan = 0;        // live bytes
    Edges tail;
    std::vector<std::pair<uint8_t, i32>> few;  // byte -> state, while there are few
    std::unique_ptr<i32[]> table;              // else all 256: -1 dead, -2 live but not made yet
    u32 dist = kFar + 1;
    i32 canon = -1;
    std::unique_ptr<struct Inner> inner;
};

// What a term decides alone: the ids that stay inside it, and where the others leave it.
struct Inner {
    Bits bits;
    std::array<i32, 257> first{};  // leaves[first[b]..first[b + 1]]: trie nodes entered by b, dead here, whose parent accepts
    std::vector<i32> leaves;
    std::bitset<256> inside;       // bytes taken after an accepting state and before the last byte of a token
    u32 far = 0;                   // largest distance to acceptance after one of the ids
};

class Store {
public:
    Terms terms;
    const Trie trie;
    const i32 n_tokens;
    const i32 words;
    std::bitset<256> single;   // bytes that are tokens of their own
    bool continuations = true;  // all that go on a character are
    std::mutex lock;
    u64 bytes = 0;

    Store(i32 n, const uint8_t* text, const int64_t* offset);
    std::pair<const uint8_t*, const uint8_t*> token(i32 id) const { return {&text_[0] + offset_[id], &text_[0] + offset_[id + 1]}; }
    i32 border(i32 node);  // the state at a character's border
    const TState& expanded(i32 s);
    const TState& at(i32 s) const { return states_[s]; }
    i32 next(i32 s, uint8_t b) {
        const TState& t = states_[s].expanded ? states_[s] : expanded(s);
        if (t.table) return t.table[b] == -2 ? made(s, b) : t.table[b];
        for (auto [byte, to] : t.few)
            if (byte == b) return to;
        return -1;
    }
    bool goes_on(i32 s) {  // whether a byte may follow
        i32 n = states_[s].node;
        return n < 0 || (n != Terms::kEmpty && (!terms[n].logic || !terms.edges(n).empty()));
    }
    u32 dist(i32 s);
    i32 canon(i32 s);  // the state with the same masks whose counters are no longer than any token can count
    bool wide(i32 s) { return expanded(s).fan >= 32; }
    const Inner& inner(i32 s);
    u64 held() const { return bytes + terms.bytes; }

private:
    std::basic_string<uint8_t> text_;
    std::vector<int64_t> offset_;
    std::deque<TState> states_;
    std::vector<i32> by_node_;
    std::map<std::vector<u32>, i32> by_tail_;
    std::vector<uint8_t> mark_;

    i32 inside(uint8_t left, Edges tail);
    void expand(i32 s);
    i32 made(i32 s, uint8_t b);
    Edges tail_after(i32 s, uint8_t b);
    void walk(Inner& out, std::vector<std::pair<uint8_t, i32>>& leaves, i32 n, i32 s);
    void differ(Inner& out, std::vector<std::pair<uint8_t, i32>>& leaves, std::vector<i32>& marked, i32 n, i32 s, i32 x);
    bool same_below(i32 s, i32 x, i32 height);
    i32 shortened(i32 node, i32 height);
    i32 base(i32 s);
    void put(Bits& bits, i32 n, i32 stop, bool on);
};

}  // namespace ramet
