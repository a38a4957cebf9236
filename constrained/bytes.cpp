#include "bytes.h"

#include <array>
#include <numeric>

namespace ramet {

// ---- the trie

Trie::Trie(i32 n_tokens, const uint8_t* text, const int64_t* offset) {
    auto token = [&](i32 id) { return std::basic_string_view<uint8_t>(text + offset[id], size_t(offset[id + 1] - offset[id])); };
    std::vector<i32> order;
    for (i32 id = 0; id < n_tokens; id++)
        if (!token(id).empty()) order.push_back(id);
    std::sort(order.begin(), order.end(), [&](i32 x, i32 y) {
        auto p = token(x), q = token(y);
        return p == q ? x < y : p < q;
    });
    std::vector<i32> path{0};  // open nodes, by depth
    auto open = [&](uint8_t b, i32 up) { byte.push_back(b), parent.push_back(up), end.push_back(0), height.push_back(0), first.push_back(i32(ids.size())); };
    auto close = [&] {
        i32 n = path.back();
        path.pop_back();
        end[n] = i32(byte.size());
        if (parent[n] >= 0) height[parent[n]] = std::max(height[parent[n]], height[n] + 1);
    };
    open(0, -1);
    std::basic_string_view<uint8_t> last;
    for (i32 id : order) {
        auto t = token(id);
        size_t same = 0;
        while (same < last.size() && same < t.size() && last[same] == t[same]) same++;
        while (path.size() > same + 1) close();
        for (size_t i = same; i < t.size(); i++) {
            open(t[i], path.back());
            path.push_back(i32(byte.size()) - 1);
        }
        ids.push_back(id);
        last = t;
    }
    while (!path.empty()) close();
    first.push_back(i32(ids.size()));
    child.assign(size() + 1, 0);
    for (size_t n = 1; n < size(); n++) child[parent[n] + 1]++;
    std::partial_sum(child.begin(), child.end(), child.begin());
    kids.resize(size() - 1);
    std::vector<i32> fill(child.begin(), child.end() - 1);
    for (size_t n = 1; n < size(); n++) kids[fill[parent[n]]++] = i32(n);
}

i32 Trie::find(i32 n, uint8_t b) const {
    auto lo = kids.begin() + child[n], hi = kids.begin() + child[n + 1];
    auto at = std::partition_point(lo, hi, [&](i32 k) { return byte[k] < b; });
    return at != hi && byte[*at] == b ? *at : -1;
}

// ---- states

Store::Store(i32 n, const uint8_t* text, const int64_t* offset)
    : trie(n, text, offset), n_tokens(n), words((n + 31) / 32), text_(text, size_t(offset[n])), offset_(offset, offset + n + 1), mark_(trie.size(), 0) {
    for (int b = 0; b < 256; b++) {
        i32 at = trie.find(0, uint8_t(b));
        single[size_t(b)] = at >= 0 && trie.first[at] < trie.first[at + 1];
        if (b >= 0x80 && b < 0xC0) continuations &= single[size_t(b)];
    }
}

i32 Store::border(i32 node) {
    if (size_t(node) >= by_node_.size()) by_node_.resize(size_t(node) + 1 + by_node_.size(), -1);
    if (by_node_[node] < 0) {
        by_node_[node] = i32(states_.size());
        states_.emplace_back();
        states_.back().node = node;
        states_.back().accept = terms[node].nullable;
        bytes += sizeof(TState) + 8;
    }
    return by_node_[node];
}

i32 Store::inside(uint8_t left, Edges tail) {
    std::vector<u32> key{left};
    for (auto& e : tail) key.insert(key.end(), {e.lo, e.hi, u32(e.to)});
    auto [at, fresh] = by_tail_.emplace(std::move(key), i32(states_.size()));
    if (fresh) {
        states_.emplace_back();
        states_.back().left = left;
        states_.back().tail = std::move(tail);
        bytes += sizeof(TState) + 100 + 24 * states_.back().tail.size();
    }
    return at->second;
}

const TState& Store::expanded(i32 s) {
    if (!states_[s].expanded) expand(s);
    return states_[s];
}

namespace {

struct Width { u32 first, last; int after; u32 lead; };  // code points that take 1 + after bytes, and the marker bits of the first one
constexpr Width kWidths[] = {{0, 0x7F, 0, 0}, {0x80, 0x7FF, 1, 0xC0}, {0x800, 0xFFFF, 2, 0xE0}, {0x10000, kLastCodePoint, 3, 0xF0}};

}  // namespace

// The ranges of what may follow byte b, as the bits of the bytes to come. Empty: b is dead.
Edges Store::tail_after(i32 s, uint8_t b) {
    bool border = states_[s].node >= 0;
    Width w = border ? kWidths[b < 0x80 ? 0 : b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3] : Width{0, kLastCodePoint, states_[s].left - 1, 0x80};
    u32 shift = u32(6 * w.after), base = (u32(b) ^ w.lead) << shift, mask = (1u << shift) - 1;
    Edges out;
    for (auto& e : border ? terms.edges(states_[s].node) : states_[s].tail) {
        u32 lo = std::max({e.lo, base, w.first}), hi = std::min({e.hi, base | mask, w.last});
        if (lo <= hi) out.push_back({lo & mask, hi & mask, e.to});
    }
    return out;
}

i32 Store::made(i32 s, uint8_t b) {
    Edges tail = tail_after(s, b);
    bool border_now = states_[s].node >= 0;
    int left = border_now ? (b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3) : states_[s].left - 1;
    i32 to = inside(uint8_t(left), std::move(tail));
    return states_[s].table[b] = to;
}

void Store::expand(i32 s) {
    TState& t = states_[s];
    std::array<i32, 256> next;
    next.fill(-1);
    auto split = [&](const Edge& e, const Width& w) {
        u32 lo = std::max(e.lo, w.first), hi = std::min(e.hi, w.last), shift = u32(6 * w.after);
        if (lo > hi) return;
        i32 to = w.after ? -2 : border(e.to);
        for (u32 b = lo >> shift; b <= hi >> shift; b++) next[w.lead | b] = to;
    };
    if (t.node >= 0) {
        for (auto& e : Edges(terms.edges(t.node)))
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
    t.expanded = true;
    if (t.fan > 6) {
        t.table.reset(new i32[256]);
        std::copy(next.begin(), next.end(), t.table.get());
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

u32 Store::dist(i32 s) {
    TState& t = states_[s];
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
    if (n.op != Op::Rep || terms[n.a].op != Op::Chars) return node;
    i32 lo = std::min(n.b, height), hi = n.c == kUnbounded || n.c >= height ? kUnbounded : n.c;
    return lo == n.b && hi == n.c ? node : terms.rep(n.a, lo, hi);
}

i32 Store::canon(i32 s) {
    if (states_[s].canon < 0) {
        i32 node = states_[s].node;
        i32 to = node < 0 ? s : border(shortened(node, trie.height[0]));
        states_[s].canon = to;
    }
    return states_[s].canon;
}

bool Store::same_below(i32 s, i32 x, i32 height) {
    if (s == x) return true;
    i32 p = states_[s].node, q = states_[x].node;
    if (p < 0 || q < 0) return false;
    auto op = [&](i32 n) { return terms[n].op == Op::Json ? terms[terms[n].a].op : terms[n].op; };
    if (op(p) != Op::Rep || op(q) != Op::Rep) return false;
    return shortened(p, height) == shortened(q, height);
}

i32 Store::base(i32 s) {  // a state whose mask is mostly the same, or -1
    i32 node = states_[s].node;
    if (node < 0) return -1;
    const Node& n = terms[node];
    const Node& r = n.op == Op::Json ? terms[n.a] : n;
    if (r.op == Op::Rep && terms[r.a].op == Op::Chars && (r.b > 0 || r.c != kUnbounded)) {
        i32 plain = terms.rep(r.a, r.c == kUnbounded ? 0 : r.b, kUnbounded);
        return border(n.op == Op::Json ? terms.json(plain) : plain);
    }
    i32 mode = expanded(s).mode;
    if (mode < 0) return -1;
    i32 x = next(s, uint8_t(mode));
    if (x == s || states_[x].node < 0) return -1;
    i32 again = expanded(x).mode;
    return states_[x].inner || (again >= 0 && next(x, uint8_t(again)) == x) ? x : -1;
}

// ---- masks of terms

void Store::put(Bits& bits, i32 n, i32 stop, bool on) {
    for (i32 i = trie.first[n]; i < trie.first[stop]; i++) {
        i32 id = trie.ids[i];
        if (on) bits[id >> 5] |= 1u << (id & 31);
        else bits[id >> 5] &= ~(1u << (id & 31));
    }
}

using Leaves = std::vector<std::pair<uint8_t, i32>>;

void Store::walk(Inner& out, Leaves& leaves, i32 n, i32 s) {
    const TState& t = expanded(s);
    for (i32 i = trie.child[n]; i < trie.child[n + 1]; i++) {
        i32 c = trie.kids[i], to = next(s, trie.byte[c]);
        if (to < 0) {
            if (t.accept && n) leaves.push_back({trie.byte[c], c});
            continue;
        }
        if (t.accept && n) out.inside.set(trie.byte[c]);
        if (trie.first[c] < trie.first[c + 1]) {
            put(out.bits, c, c + 1, true);
            out.far = std::max(out.far, dist(to));
        }
        if (trie.height[c]) walk(out, leaves, c, to);
    }
}

void Store::differ(Inner& out, Leaves& leaves, std::vector<i32>& marked, i32 n, i32 s, i32 x) {
    const TState& t = expanded(s);
    auto mark = [&](i32 from, i32 to) {
        for (i32 i = from; i < to; i++) mark_[i] = 1, marked.push_back(i);
    };
    mark(n, n + 1);
    for (i32 i = trie.child[n]; i < trie.child[n + 1]; i++) {
        i32 c = trie.kids[i], to = next(s, trie.byte[c]), other = next(x, trie.byte[c]);
        if (to < 0) {
            if (t.accept && n) leaves.push_back({trie.byte[c], c});
            if (other >= 0) put(out.bits, c, trie.end[c], false), mark(c, trie.end[c]);
            continue;
        }
        if (t.accept && n) out.inside.set(trie.byte[c]);
        if (other >= 0 && same_below(to, other, trie.height[c])) continue;
        if (trie.first[c] < trie.first[c + 1]) out.far = std::max(out.far, dist(to));
        if (other >= 0) differ(out, leaves, marked, c, to, other);
        else put(out.bits, c, c + 1, true), walk(out, leaves, c, to);
    }
}

const Inner& Store::inner(i32 s) {
    if (states_[s].inner) return *states_[s].inner;
    auto out = std::make_unique<Inner>();
    Leaves leaves;
    i32 x = base(s);
    if (x < 0) {
        out->bits.assign(size_t(words), 0);
        walk(*out, leaves, 0, s);
    } else {
        const Inner& other = inner(x);
        std::vector<i32> marked;
        out->bits = other.bits, out->inside = other.inside, out->far = other.far;
        differ(*out, leaves, marked, 0, s, x);
        for (i32 b = 0; b < 256; b++)
            for (i32 i = other.first[b]; i < other.first[b + 1]; i++)
                if (!mark_[trie.parent[other.leaves[i]]]) leaves.push_back({uint8_t(b), other.leaves[i]});
        for (i32 n : marked) mark_[n] = 0;
    }
    std::sort(leaves.begin(), leaves.end());
    for (auto [b, n] : leaves) out->first[size_t(b) + 1]++, out->leaves.push_back(n);
    std::partial_sum(out->first.begin(), out->first.end(), out->first.begin());
    bytes += 4 * (out->bits.size() + out->leaves.size()) + sizeof(Inner);
    states_[s].inner = std::move(out);
    return *states_[s].inner;
}

}  // namespace ramet
