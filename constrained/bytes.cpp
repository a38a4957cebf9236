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
    all_bytes = true;
    for (int b = 0; b < 0xF5; b++)
        if (b != 0xC0 && b != 0xC1) all_bytes &= [&] { i32 at = trie.find(0, uint8_t(b)); return at >= 0 && trie.first[at] < trie.first[at + 1]; }();
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
    TState& t = states_[s];
    if (!t.expanded) expand(t);
    return t;
}

void Store::expand(TState& t) {
    std::array<i32, 256> next;
    next.fill(-1);
    std::map<u32, Edges> tails;  // first byte of a longer character -> what its other bytes may be
    i32 low = 256, high = -1;
    auto set = [&](u32 b, i32 to) { next[b] = to, low = std::min(low, i32(b)), high = std::max(high, i32(b)); };
    auto split = [&](const Edge& e, u32 from, u32 to, i32 bytes_after, u32 lead) {
        u32 lo = std::max(e.lo, from), hi = std::min(e.hi, to), shift = 6 * bytes_after;
        for (u32 b = lo >> shift; lo <= hi && b <= hi >> shift; b++) {
            u32 base = b << shift, mask = (1u << shift) - 1;
            if (!shift) set(lead | b, border(e.to));
            else {
                Edges& tail = tails[lead | b];
                u32 first = std::max(lo, base) & mask, last = std::min(hi, base | mask) & mask;
                if (!tail.empty() && tail.back().to == e.to && tail.back().hi + 1 == first) tail.back().hi = last;
                else tail.push_back({first, last, e.to});
            }
        }
    };
    if (t.node >= 0) {
        for (auto& e : Edges(terms.edges(t.node))) {
            split(e, 0, 0x7F, 0, 0);
            split(e, 0x80, 0x7FF, 1, 0xC0);
            split(e, 0x800, 0xFFFF, 2, 0xE0);
            split(e, 0x10000, kLastCodePoint, 3, 0xF0);
        }
        for (auto& [lead, tail] : tails) set(lead, inside(uint8_t(lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3), std::move(tail)));
    } else {
        for (auto& e : t.tail) split(e, 0, kLastCodePoint, t.left - 1, 0x80);
        for (auto& [lead, tail] : tails) set(lead, inside(uint8_t(t.left - 1), std::move(tail)));
    }
    std::unordered_map<i32, i32> votes;
    i32 most = 0;
    for (i32 b = low; b <= high; b++) {
        if (next[b] < 0) continue;
        t.fan++;
        if (i32 v = ++votes[next[b]]; v > most) most = v, t.mode = int16_t(b);
    }
    if (most < 48) t.mode = -1;
    if (t.fan <= 6) {
        for (i32 b = low; b <= high; b++)
            if (next[b] >= 0) t.few.push_back({uint8_t(b), next[b]});
    } else {
        t.table.reset(new i32[256]);
        std::copy(next.begin(), next.end(), t.table.get());
        bytes += 1024;
    }
    t.expanded = true;
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
