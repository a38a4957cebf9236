// Which terms are alive, and how far the end is. Of terms with Both or Not inside, both are one search over derivatives.
#include <queue>

#include "terms.h"

namespace ramet {

static u32 sum(u32 x, u32 y) { return std::min(kFar, x + y); }

bool Terms::alive(i32 n) {
    Node& x = nodes_[n];
    if (!x.logic) return n != kNothing;
    if (x.alive >= 0) return x.alive > 0;
    bool found;
    switch (x.op) {
    case Op::Seq: found = alive(x.a) && alive(x.b); break;
    case Op::Rep: found = x.b == 0 || alive(x.a); break;
    case Op::Alt: found = std::any_of(x.kids.begin(), x.kids.end(), [&](i32 k) { return alive(k); }); break;
    case Op::Multiple: found = dist(n) < kFar; break;
    case Op::Compare:
    case Op::Both:
    case Op::Not: found = x.nullable || search(n, false) < kFar; break;
    case Op::Json: found = alive(x.a); break;
    default: found = true;  // made only where something live follows
    }
    nodes_[n].alive = found;
    return found;
}

static u32 cheapest(u32 lo, u32 hi, bool json) {  // bytes of the shortest spelling of any character in lo..hi
    if (!json) return lo < 0x80 ? 1 : lo < 0x800 ? 2 : lo < 0x10000 ? 3 : 4;
    u32 best = hi >= 0x80 ? cheapest(std::max(lo, 0x80u), hi, false) : 6;
    for (u32 c = lo; c <= std::min(hi, 0x7Fu); c++) {
        if (c >= 0x20 && c != '"' && c != '\\') return 1;
        if (c == '"' || c == '\\' || (c >= 8 && c <= 13 && c != 11)) best = std::min(best, 2u);
    }
    return best;
}

u32 Terms::nearest(i32 a, u32 lo, u32 hi) {  // fewest bytes of a JSON string after a character of lo..hi
    u32 best = kFar;
    for (auto& e : Edges(edges(a)))
        if (e.lo <= hi && lo <= e.hi) best = std::min(best, dist(e.to, true));
    return best;
}

u32 Terms::dist(i32 n, bool json) {
    const Node& x = nodes_[n];
    if (x.dist[json] <= kFar) return x.dist[json];
    u32 best = kFar;
    switch (x.op) {
    case Op::Nothing: break;
    case Op::Empty: best = 0; break;
    case Op::Lit:
        best = 0;
        for (size_t i = x.b; i < texts_[x.a].size(); i++) best += cheapest(texts_[x.a][i], texts_[x.a][i], json);
        break;
    case Op::Chars:
        for (auto [lo, hi] : classes_[x.a]) best = std::min(best, cheapest(lo, hi, json));
        break;
    case Op::Seq: {  // a long chain is no deep recursion
        std::vector<i32> chain;
        for (i32 i = n; nodes_[i].op == Op::Seq && nodes_[i].dist[json] > kFar; i = nodes_[i].b) chain.push_back(i);
        for (size_t i = chain.size(); i-- > 0;) nodes_[chain[i]].dist[json] = sum(dist(nodes_[chain[i]].a, json), dist(nodes_[chain[i]].b, json));
        return nodes_[n].dist[json];
    }
    case Op::Rep: {
        u64 all = x.b ? u64(x.b) * dist(x.a, json) : 0;
        best = u32(std::min<u64>(all, kFar));
        break;
    }
    case Op::Alt:
        for (i32 k : x.kids) best = std::min(best, dist(k, json));
        break;
    case Op::Json: best = dist(x.a, true); break;
    case Op::Multiple: best = multiple_dist(n); break;
    case Op::Set:
    case Op::Compare:
    case Op::Both:
    case Op::Not: best = x.nullable ? 0 : search(n, json); break;
    case Op::Esc:
        for (auto& e : Edges(edges(n))) best = std::min(best, sum(1, dist(e.to)));
        break;
    case Op::Hex: {
        u32 bits = 4 * u32(4 - x.b), first = u32(x.c) << bits, last = first + (1u << bits) - 1, low = std::max(first, 0xD800u), high = std::min(last, 0xDBFFu);
        best = sum(u32(4 - x.b), nearest(x.a, first, last));
        if (low <= high) best = std::min(best, sum(u32(10 - x.b), nearest(x.a, 0x10000 + ((low - 0xD800) << 10), 0x103FF + ((high - 0xD800) << 10))));
        break;
    }
    case Op::Low: {
        u32 base = 0x10000 + (u32(x.b - 0xD800) << 10), bits = x.c < 2 ? 16 : 4 * u32(6 - x.c), value = x.c < 2 ? 0 : u32(x.d);
        u32 first = std::max(value << bits, 0xDC00u), last = std::min(((value + 1) << bits) - 1, 0xDFFFu);
        best = sum(u32(6 - x.c), nearest(x.a, base + first - 0xDC00, base + last - 0xDC00));
        break;
    }
    }
    nodes_[n].dist[json] = best;
    return best;
}

u32 Terms::at_least(i32 n, bool json) {  // no more than dist, and cheap
    const Node& x = nodes_[n];
    if (x.dist[json] <= kFar) return x.dist[json];
    if (x.alive == 0) return kFar;
    u32 most = 0;
    if (x.op == Op::Both)
        for (i32 k : x.kids)
            if (!nodes_[k].logic || nodes_[k].op == Op::Compare || nodes_[k].op == Op::Multiple) most = std::max(most, dist(k, json));
    return most;
}

// The shortest way to acceptance over derivatives (A*: Hart, Nilsson and Raphael 1968). Nodes on it learn their distance; where there is
// none, all that was seen is dead.
u32 Terms::search(i32 n, bool json) {
    struct Item {
        u32 total, cost;
        i32 node;
        bool operator<(const Item& o) const { return total != o.total ? total > o.total : cost < o.cost; }
    };
    struct Seen { u32 cost; i32 parent; };
    std::priority_queue<Item> queue;
    std::unordered_map<i32, Seen> seen{{n, {0, -1}}};
    queue.push({at_least(n, json), 0, n});
    while (!queue.empty()) {
        Item at = queue.top();
        tick();
        rest();
        queue.pop();
        if (at.total >= kFar) break;
        if (at.cost > seen[at.node].cost) continue;
        if (nodes_[at.node].nullable || nodes_[at.node].dist[json] < kFar) {
            u32 all = at.cost + (nodes_[at.node].nullable ? 0 : nodes_[at.node].dist[json]);
            for (i32 i = at.node; i >= 0; i = seen[i].parent) nodes_[i].dist[json] = all - seen[i].cost, nodes_[i].alive = std::max<int8_t>(nodes_[i].alive, 1);
            return all;
        }
        for (auto& e : Edges(raw_edges(at.node))) {
            u32 cost = at.cost + cheapest(e.lo, e.hi, json), rest = at_least(e.to, json);
            auto [known, fresh] = seen.emplace(e.to, Seen{cost, at.node});
            if (rest >= kFar || (!fresh && known->second.cost <= cost)) continue;
            known->second = {cost, at.node};
            queue.push({cost + rest, cost, e.to});
        }
    }
    for (auto& [dead, _] : seen) nodes_[dead].alive = 0, nodes_[dead].dist[0] = nodes_[dead].dist[1] = kFar;
    return kFar;
}

bool Terms::finite(i32 n) const {
    const Node& x = nodes_[n];
    switch (x.op) {
    case Op::Seq: return finite(x.a) && finite(x.b);
    case Op::Rep: return x.c != kUnbounded && finite(x.a);
    case Op::Alt: return std::all_of(x.kids.begin(), x.kids.end(), [&](i32 k) { return finite(k); });
    case Op::Both: return std::any_of(x.kids.begin(), x.kids.end(), [&](i32 k) { return finite(k); });
    case Op::Not:
    case Op::Compare:
    case Op::Multiple:
    case Op::Json: return false;
    default: return true;
    }
}

u32 Terms::begun_by_anything(i32 n, bool json) {
    const Node& x = nodes_[n];
    auto anything = [&](const Node& r) { return r.op == Op::Rep && r.a == any_char && r.c == kUnbounded; };
    if (anything(x)) return u32(x.b);
    if (x.op == Op::Seq && anything(nodes_[x.a]) && alive(x.b)) return dist(n, json);
    if (x.op == Op::Not && finite(x.a)) return 1;
    u32 best = kFar;
    if (x.op == Op::Alt)
        for (i32 k : x.kids) best = std::min(best, begun_by_anything(k, json));
    return best;
}

u32 Terms::stretch(i32 n) {
    constexpr size_t kFew = 64;  // states looked at
    if (nodes_[n].stretch <= kFar) return nodes_[n].stretch;
    std::vector<i32> seen{n};
    std::unordered_set<i32> known{n};
    u32 most = 0;
    for (size_t i = 0; i < seen.size() && seen.size() <= kFew; i++) {
        most = std::max(most, dist(seen[i]));
        for (auto& e : Edges(edges(seen[i])))
            if (known.insert(e.to).second) seen.push_back(e.to);
    }
    if (seen.size() > kFew) return nodes_[n].stretch = kFar;
    for (i32 i : seen) nodes_[i].stretch = most;
    return most;
}

}  // namespace ramet
