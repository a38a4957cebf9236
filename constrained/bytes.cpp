#include "bytes.h"

#include <array>
#include <numeric>
#include <string_view>

namespace ramet {

// ---- the trie

Trie::Trie(i32 n_tokens, const uint8_t* text, const int64_t* offset) {
    auto token = [&](i32 id) { return std::string_view(reinterpret_cast<const char*>(text) + offset[id], size_t(offset[id + 1] - offset[id])); };
    std::vector<std::pair<u64, i32>> order;  // the first eight bytes settle most comparisons
    for (i32 id = 0; id < n_tokens; id++) {
        auto t = token(id);
        u64 head = 0;
        for (size_t i = 0; i < 8; i++) head = head << 8 | (i < t.size() ? uint8_t(t[i]) : 0);
        if (!t.empty()) order.push_back({head, id});
    }
    std::sort(order.begin(), order.end(), [&](auto& x, auto& y) {
        if (x.first != y.first) return x.first < y.first;
        auto p = token(x.second), q = token(y.second);
        return p == q ? x.second < y.second : p < q;
    });
    std::vector<i32> path;  // open nodes, by depth
    auto open = [&](uint8_t b) {
        parent.push_back(path.empty() ? -1 : path.back());
        nodes.push_back({0, i32(ids.size()), 0, uint16_t(path.size()), b});
        path.push_back(size() - 1);
    };
    auto close = [&] {
        i32 n = path.back();
        path.pop_back();
        nodes[size_t(n)].end = size();
        if (n) nodes[size_t(parent[n])].height = std::max<uint16_t>(nodes[size_t(parent[n])].height, uint16_t(nodes[size_t(n)].height + 1));
    };
    open(0);
    std::string_view last;
    for (auto [_, id] : order) {
        auto t = token(id);
        size_t same = 0;
        while (same < last.size() && same < t.size() && last[same] == t[same]) same++;
        while (path.size() > same + 1) close();
        for (size_t i = same; i < t.size(); i++) open(uint8_t(t[i]));
        ids.push_back(id);
        length.push_back(uint16_t(t.size()));
        last = t;
    }
    while (!path.empty()) close();
    nodes.push_back({size(), i32(ids.size()), 0, 0, 0});
    below.resize(size_t(size()));
    for (i32 n = size() - 1; n > 0; n--) {
        below[size_t(parent[n])].add(below[size_t(n)]);
        below[size_t(parent[n])].add(nodes[size_t(n)].byte);
    }
    child.assign(size_t(size()) + 1, 0);
    for (i32 n = 1; n < size(); n++) child[size_t(parent[n]) + 1]++;
    std::partial_sum(child.begin(), child.end(), child.begin());
    kids.resize(size_t(size()) - 1);
    std::vector<i32> fill(child.begin(), child.end() - 1);
    for (i32 n = 1; n < size(); n++) kids[size_t(fill[parent[n]]++)] = n;
}

i32 Trie::find(i32 n, uint8_t b) const {
    auto lo = kids.begin() + child[n], hi = kids.begin() + child[n + 1];
    auto at = std::partition_point(lo, hi, [&](i32 k) { return nodes[size_t(k)].byte < b; });
    return at != hi && nodes[size_t(*at)].byte == b ? *at : -1;
}

// ---- states

Store::Store(i32 n, const uint8_t* text, const int64_t* offset)
    : trie(n, text, offset), n_tokens(n), words((n + 31) / 32), text_(text, text + offset[n]), offset_(offset, offset + n + 1) {
    for (int b = 0; b < 256; b++) {
        i32 at = trie.find(0, uint8_t(b));
        if (at >= 0 && trie.holds(at)) single.set(size_t(b));
        if (b >= 0x80 && b < 0xC0) continuations &= single.has(size_t(b));
    }
}

i32 Store::border(i32 node) {
    if (size_t(node) >= by_node_.size()) by_node_.resize(size_t(node) + 1 + by_node_.size(), -1);
    if (by_node_[node] < 0) {
        by_node_[node] = i32(states_.size());
        states_.push_back(std::make_unique<TState>());
        states_.back()->node = node;
        states_.back()->accept = terms[node].nullable;
        bytes += sizeof(TState) + 32;
    }
    return by_node_[node];
}

i32 Store::inside(uint8_t left, Edges tail) {
    std::vector<u32> key{left};
    for (auto& e : tail) key.insert(key.end(), {e.lo, e.hi, u32(e.to)});
    auto [at, fresh] = by_tail_.emplace(std::move(key), i32(states_.size()));
    if (fresh) {
        bytes += sizeof(TState) + 124 + 24 * tail.size();
        states_.push_back(std::make_unique<TState>());
        states_.back()->left = left;
        states_.back()->tail = std::move(tail);
    }
    return at->second;
}

const TState& Store::expanded(i32 s) {
    if (!states_[size_t(s)]->expanded) expand(s);
    return (*states_[size_t(s)]);
}

namespace {

struct Width { u32 first, last; int after; u32 lead; };  // code points that take 1 + after bytes, and the marker bits of the first one
constexpr Width kWidths[] = {{0, 0x7F, 0, 0}, {0x80, 0x7FF, 1, 0xC0}, {0x800, 0xFFFF, 2, 0xE0}, {0x10000, kLastCodePoint, 3, 0xF0}};

}  // namespace

// The ranges of what may follow byte b, as the bits of the bytes to come. Empty: b is dead.
Edges Store::tail_after(i32 s, uint8_t b) {
    bool border = states_[size_t(s)]->node >= 0;
    Width w = border ? kWidths[b < 0x80 ? 0 : b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3] : Width{0, kLastCodePoint, states_[size_t(s)]->left - 1, 0x80};
    u32 shift = u32(6 * w.after), base = (u32(b) ^ w.lead) << shift, mask = (1u << shift) - 1;
    Edges out;
    for (auto& e : border ? terms.edges(states_[size_t(s)]->node) : states_[size_t(s)]->tail) {
        u32 lo = std::max({e.lo, base, w.first}), hi = std::min({e.hi, base | mask, w.last});
        if (lo <= hi) out.push_back({lo & mask, hi & mask, e.to});
    }
    return out;
}

i32 Store::made(i32 s, uint8_t b) {
    Edges tail = tail_after(s, b);
    bool border_now = states_[size_t(s)]->node >= 0;
    int left = border_now ? (b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3) : states_[size_t(s)]->left - 1;
    i32 to = inside(uint8_t(left), std::move(tail));
    return states_[size_t(s)]->table[b] = to;
}

void Store::expand(i32 s) {
    TState& t = (*states_[size_t(s)]);
    std::array<i32, 256> next;
    next.fill(-1);
    auto split = [&](const Edge& e, const Width& w) {
        u32 lo = std::max(e.lo, w.first), hi = std::min(e.hi, w.last), shift = u32(6 * w.after);
        if (lo > hi) return;
        i32 to = w.after ? -2 : border(e.to);
        for (u32 b = lo >> shift; b <= hi >> shift; b++) next[w.lead | b] = to;
    };
    if (t.node >= 0) {
        Edges edges = terms.edges(t.node);
        if (t.expanded) return;  // by another call, while the search for dead ends rested
        for (auto& e : edges)
            for (auto& w : kWidths) split(e, w);
    } else {
        for (auto& e : t.tail) split(e, {0, kLastCodePoint, t.left - 1, 0x80});
    }
    i32 votes = 0, leader = -1, most = 0;  // the majority among the bytes that end a character, if there is one
    for (i32 to : next) {
        t.fan += to != -1;
        if (to < 0) continue;
        if (votes == 0) leader = to;
        votes += to == leader ? 1 : -1;
    }
    for (i32 b = 0; b < 256 && leader >= 0; b++)
        if (next[size_t(b)] == leader) most++, t.mode = int16_t(b);
    if (most < 48) t.mode = -1;
    for (size_t b = 0; b < 256; b++)
        if (next[b] != -1) t.live.set(b);
    t.expanded = true;
    if (t.fan > 6) {
        t.table.reset(new i32[256]);
        std::copy(next.begin(), next.end(), t.table.get());
        for (i32 b = 1; b < 128; b++)
            if (next[size_t(b)] == s) t.loop.add(uint8_t(b));
        bytes += 1024;
        return;
    }
    for (i32 b = 0; b < 256; b++) {
        if (next[size_t(b)] == -1) continue;
        int left = t.node < 0 ? t.left - 1 : b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
        i32 to = next[size_t(b)] == -2 ? inside(uint8_t(left), tail_after(s, uint8_t(b))) : next[size_t(b)];
        t.few.push_back({uint8_t(b), to});
    }
}

bool Store::wide(i32 s) {
    if (expanded(s).wide < 0) {
        constexpr i32 kMany = 32;
        const TState& t = expanded(s);
        bool found = t.fan >= kMany;
        if (!found && t.node >= 0 && terms[t.node].op != Op::Lit && t.fan < kMany) {
            i32 last = -1;
            t.live.each([&](uint8_t b) {
                i32 to = found ? last : next(s, b);
                if (to != last) found = expanded(last = to).fan >= kMany;
            });
        }
        states_[size_t(s)]->wide = found;
    }
    return states_[size_t(s)]->wide;
}

u32 Store::dist(i32 s) {
    TState& t = (*states_[size_t(s)]);
    if (t.dist > kFar) {
        if (t.node >= 0) t.dist = terms.dist(t.node);
        else {
            u32 best = kFar;
            for (auto& e : t.tail) best = std::min(best, terms.dist(e.to));
            t.dist = std::min(kFar, best + t.left);
        }
    }
    return t.dist;
}

// ---- counters that no token can exhaust are all alike

i32 Store::shortened(i32 node, i32 height) {
    const Node& n = terms[node];
    if (n.op == Op::Json) {
        i32 inner = shortened(n.a, height);
        return inner == n.a ? node : terms.json(inner);
    }
    if (n.op == Op::Both) return without_far_length(node, height);
    if (n.op != Op::Rep || terms[n.a].op != Op::Chars) return node;
    i32 lo = std::min(n.b, height), hi = n.c == kUnbounded || n.c >= height ? kUnbounded : n.c;
    return lo == n.b && hi == n.c ? node : terms.rep(n.a, lo, hi);
}

// Beside other conditions, a largest length matters to a token only where the shortest way to satisfy them all may run into it.
i32 Store::without_far_length(i32 node, i32 height) {
    std::vector<i32> others;
    i32 length = -1;
    for (i32 k : terms[node].kids) {
        if (terms[k].op == Op::Rep && terms[k].a == terms.any_char && terms[k].c != kUnbounded && length < 0) length = k;
        else others.push_back(k);
    }
    if (length < 0) return node;
    i32 lo = terms[length].b, hi = terms[length].c;
    if (hi < lo + height) return node;
    u32 stretch = terms.stretch(terms.both(others));
    if (stretch >= kFar || u64(hi) < u64(lo) + u64(height) + stretch) return node;
    others.push_back(terms.rep(terms.any_char, lo, kUnbounded));
    return terms.both(others);
}

i32 Store::canon(i32 s) {
    if (states_[size_t(s)]->canon < 0) {
        i32 node = states_[size_t(s)]->node;
        i32 to = node < 0 ? s : border(shortened(node, trie.height()));
        states_[size_t(s)]->canon = to;
    }
    return states_[size_t(s)]->canon;
}

}  // namespace ramet
