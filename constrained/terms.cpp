#include "terms.h"

#include <chrono>
#include <ctime>
#include <thread>

namespace ramet {

Terms::Terms() {
    node(Op::Nothing, false, false);
    node(Op::Empty, true, false);
    any_char = chars({{0, 0xD7FF}, {0xE000, kLastCodePoint}});
    any_string = rep(any_char, 0, kUnbounded);
}

i32 Terms::make(Node x) {
    u64 h = mixed(mixed(u64(x.op), u64(u32(x.a)) << 32 | u32(x.b)), u64(u32(x.c)) << 32 | u32(x.d));
    for (i32 k : x.kids) h = mixed(h, u64(k));
    h = mixed(h, 1);
    i32 n = index_.find(h, [&](i32 i) {
        const Node& y = nodes_[i];
        return x.op == y.op && x.a == y.a && x.b == y.b && x.c == y.c && x.d == y.d && x.kids == y.kids;
    });
    if (n >= 0) return n;
    tick();
    if (bytes > work.byte_limit) throw Limit("the constraint passes its memory limit");
    bytes += sizeof(Node) + 16 + 4 * x.kids.size();
    nodes_.push_back(std::move(x));
    n = i32(nodes_.size()) - 1;
    index_.add(h, n);
    return n;
}

i32 Terms::node(Op op, bool nullable, bool logic, i32 a, i32 b, i32 c, i32 d) {
    Node x;
    x.op = op, x.nullable = nullable, x.logic = logic, x.a = a, x.b = b, x.c = c, x.d = d;
    return make(std::move(x));
}

i32 Terms::lit_at(i32 text, i32 at) { return at == i32(texts_[text].size()) ? kEmpty : node(Op::Lit, false, false, text, at); }

i32 Terms::lit(const Text& text) {
    auto [at, fresh] = text_index_.emplace(text, i32(texts_.size()));
    if (fresh) texts_.push_back(text), bytes += 2 * sizeof(char32_t) * text.size() + 100;
    return lit_at(at->second, 0);
}

i32 Terms::set_at(i32 set, i32 lo, i32 hi, i32 depth) {
    if (lo == hi) return kNothing;
    const Text& first = sets_[set][lo];
    if (hi - lo == 1) return lit(first.substr(depth));
    return node(Op::Set, i32(first.size()) == depth, false, set, lo, hi, depth);
}

i32 Terms::set(std::vector<Text> texts) {
    std::sort(texts.begin(), texts.end());
    texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
    auto [at, fresh] = set_index_.emplace(texts, i32(sets_.size()));
    if (fresh) {
        for (auto& t : texts) bytes += 2 * (sizeof(char32_t) * t.size() + 32);
        sets_.push_back(std::move(texts));
    }
    return set_at(at->second, 0, i32(sets_[at->second].size()), 0);
}

i32 Terms::chars(const Ranges& ranges) {
    if (ranges.empty()) return kNothing;
    auto [at, fresh] = class_index_.emplace(ranges, i32(classes_.size()));
    if (fresh) classes_.push_back(ranges), bytes += 16 * ranges.size() + 100;
    return node(Op::Chars, false, false, at->second);
}

i32 Terms::seq(i32 a, i32 b) {
    if (a == kNothing || b == kNothing) return kNothing;
    if (a == kEmpty) return b;
    if (b == kEmpty) return a;
    if (nodes_[a].op == Op::Seq) {
        i32 head = nodes_[a].a, rest = seq(nodes_[a].b, b);
        return seq(head, rest);
    }
    if (b == any_string && nodes_[a].op == Op::Rep && nodes_[a].b != nodes_[a].c && nodes_[nodes_[a].a].op == Op::Chars)
        a = rep(nodes_[a].a, nodes_[a].b, nodes_[a].b);  // what is beyond the least count is any text as well
    if (a == kEmpty) return b;
    i32 next = nodes_[b].op == Op::Seq ? nodes_[b].a : b, rest = next == b ? kEmpty : nodes_[b].b;
    const Node &x = nodes_[a], &y = nodes_[next];
    if (x.op == Op::Rep && y.op == Op::Rep && x.a == y.a) {  // x{a,b}x{c,d} = x{a+c,b+d}
        i32 hi = x.c == kUnbounded || y.c == kUnbounded ? kUnbounded : x.c + y.c;
        if (int64_t(x.b) + y.b < kFar) return seq(rep(x.a, x.b + y.b, hi), rest);
    }
    return node(Op::Seq, x.nullable && nodes_[b].nullable, x.logic || nodes_[b].logic, a, b);
}

i32 Terms::rep(i32 a, i32 lo, i32 hi) {
    if (hi == 0 || a == kEmpty) return kEmpty;
    if (a == kNothing) return lo ? kNothing : kEmpty;
    if (nodes_[a].nullable) lo = 0;
    if (lo == 1 && hi == 1) return a;
    return node(Op::Rep, lo == 0, nodes_[a].logic, a, lo, hi);
}

i32 Terms::alt(const std::vector<i32>& kids) {
    std::vector<i32> flat;
    flat.reserve(kids.size());
    for (i32 k : kids) {
        if (k == any_string) return any_string;
        if (nodes_[k].op == Op::Alt) flat.insert(flat.end(), nodes_[k].kids.begin(), nodes_[k].kids.end());
        else if (k != kNothing) flat.push_back(k);
    }
    std::sort(flat.begin(), flat.end());
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    auto counts = [&](i32 k) { return nodes_[nodes_[k].op == Op::Seq ? nodes_[k].a : k].op == Op::Rep; };
    if (std::count_if(flat.begin(), flat.end(), counts) > 1) {  // x{a,b}t | x{c,d}t with counts that meet: one counter
        struct Counter { i32 body, tail, lo, hi; };
        std::vector<Counter> counters;
        std::vector<i32> others;
        counters.reserve(flat.size()), others.reserve(flat.size());
        for (i32 k : flat) {
            i32 head = nodes_[k].op == Op::Seq ? nodes_[k].a : k;
            if (nodes_[head].op != Op::Rep) others.push_back(k);
            else counters.push_back({nodes_[head].a, head == k ? kEmpty : nodes_[k].b, nodes_[head].b, nodes_[head].c});
        }
        std::sort(counters.begin(), counters.end(), [](const Counter& x, const Counter& y) {
            return std::tie(x.body, x.tail, x.lo) < std::tie(y.body, y.tail, y.lo);
        });
        size_t merged = 0;
        for (auto& c : counters) {
            Counter* last = merged ? &counters[merged - 1] : nullptr;
            bool same = last && last->body == c.body && last->tail == c.tail;
            if (same && c.tail == any_string && nodes_[c.body].op == Op::Chars) continue;  // the least count holds the others
            if (same && (last->hi == kUnbounded || c.lo <= last->hi + 1))
                last->hi = last->hi == kUnbounded || c.hi == kUnbounded ? kUnbounded : std::max(last->hi, c.hi);
            else counters[merged++] = c;
        }
        if (merged < counters.size()) {
            for (size_t i = 0; i < merged; i++) others.push_back(seq(rep(counters[i].body, counters[i].lo, counters[i].hi), counters[i].tail));
            return alt(others);
        }
    }
    bool nullable = false, logic = false, empty_too = false;
    for (i32 k : flat) {
        if (k == kEmpty) empty_too = true;
        else nullable |= nodes_[k].nullable;
        logic |= nodes_[k].logic;
    }
    if (empty_too && nullable) flat.erase(std::find(flat.begin(), flat.end(), i32(kEmpty)));
    if (flat.empty()) return kNothing;
    if (flat.size() == 1) return flat[0];
    Node x;
    x.op = Op::Alt, x.nullable = nullable || empty_too, x.logic = logic, x.kids = std::move(flat);
    return make(std::move(x));
}

i32 Terms::both(const std::vector<i32>& kids) {
    std::vector<i32> flat;
    flat.reserve(kids.size());
    bool empty_only = false, nullable = true;
    for (i32 k : kids) {
        if (k == kNothing) return kNothing;
        if (nodes_[k].op == Op::Both) flat.insert(flat.end(), nodes_[k].kids.begin(), nodes_[k].kids.end());
        else if (k != any_string) flat.push_back(k);
    }
    std::sort(flat.begin(), flat.end());
    flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
    for (i32 k : flat) {
        nullable &= nodes_[k].nullable;
        empty_only |= k == kEmpty;
        if (nodes_[k].op == Op::Not && std::binary_search(flat.begin(), flat.end(), nodes_[k].a)) return kNothing;
    }
    if (flat.empty()) return any_string;
    if (flat.size() == 1) return flat[0];
    if (empty_only) return nullable ? kEmpty : kNothing;
    Node x;
    x.op = Op::Both, x.nullable = nullable, x.logic = true, x.kids = std::move(flat);
    return make(std::move(x));
}

i32 Terms::negate(i32 a) {
    if (nodes_[a].op == Op::Not) return nodes_[a].a;
    if (a == kNothing) return any_string;
    if (a == any_string) return kNothing;
    return node(Op::Not, !nodes_[a].nullable, true, a);
}

i32 Terms::json(i32 a) {
    if (a == kNothing || a == kEmpty) return a;
    return node(Op::Json, nodes_[a].nullable, nodes_[a].logic, a);
}

void Terms::check_clock() {  // of this thread's work: a busy machine refuses nothing
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    double seconds = double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
    if (work.ticks == 1024) work.deadline = seconds + work.seconds;
    else if (seconds > work.deadline) throw Limit("the constraint takes too long: it passes its time limit");
}

void Terms::give_way() {
    Work mine = work;
    u64 before = bytes;
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    lock.lock();
    u64 added = bytes - before;
    mine.others += added, mine.byte_limit += added;
    work = mine;
}

// ---- derivatives

Edges Terms::overlay(const std::vector<const Edges*>& parts, const std::function<i32(const std::vector<i32>&)>& join) {
    std::vector<i32> found;
    Edges out;
    if (parts.size() == 1) {
        for (auto& e : *parts[0]) found.assign(1, e.to), add_edge(out, e.lo, e.hi, join(found));
        return out;
    }
    std::vector<u32> points;
    size_t most = 0;
    for (auto* p : parts) most += 2 * p->size();
    points.reserve(most), found.reserve(parts.size());
    for (auto* p : parts)
        for (auto& e : *p) points.push_back(e.lo), points.push_back(e.hi + 1);
    std::sort(points.begin(), points.end());
    points.erase(std::unique(points.begin(), points.end()), points.end());
    std::vector<size_t> at(parts.size(), 0);
    struct Joined { size_t begin; i32 to; };  // what stood in `met` from there on gave this: the same meet again and again
    std::vector<Joined> joined;
    std::vector<i32> met;
    for (size_t i = 0; i + 1 < points.size(); i++) {
        found.clear();
        for (size_t k = 0; k < parts.size(); k++) {
            auto& p = *parts[k];
            while (at[k] < p.size() && p[at[k]].hi < points[i]) at[k]++;
            if (at[k] < p.size() && p[at[k]].lo <= points[i]) found.push_back(p[at[k]].to);
        }
        if (found.empty()) continue;
        auto known = std::find_if(joined.begin(), joined.end(), [&](const Joined& j) {
            size_t end = &j == &joined.back() ? met.size() : (&j)[1].begin;
            return std::equal(found.begin(), found.end(), met.begin() + j.begin, met.begin() + end);
        });
        if (known == joined.end()) {
            joined.push_back({met.size(), join(found)});
            met.insert(met.end(), found.begin(), found.end());
            known = joined.end() - 1;
        }
        add_edge(out, points[i], points[i + 1] - 1, known->to);
    }
    return out;
}

const Edges& Terms::raw_edges(i32 n) {
    if (!nodes_[n].expanded) {
        Edges found = derive(n);
        bytes += sizeof(Edge) * found.size();
        nodes_[n].edges = std::move(found);
        nodes_[n].expanded = true;
    }
    return nodes_[n].edges;
}

const Edges& Terms::edges(i32 n) {
    raw_edges(n);
    if (nodes_[n].logic && nodes_[n].alive != 2) {  // 2: alive, and the dead edges are gone
        Edges kept;
        for (auto& e : Edges(nodes_[n].edges))
            if (alive(e.to)) kept.push_back(e);
        nodes_[n].edges = std::move(kept);
        if (alive(n)) nodes_[n].alive = 2;
    }
    return nodes_[n].edges;
}

Edges Terms::derive(i32 id) {
    const Node& n = nodes_[id];
    Edges out;
    switch (n.op) {
    case Op::Nothing:
    case Op::Empty: break;
    case Op::Lit: {
        u32 c = texts_[n.a][n.b];
        out.push_back({c, c, lit_at(n.a, n.b + 1)});
        break;
    }
    case Op::Set: return derive_set(n);
    case Op::Chars:
        for (auto [lo, hi] : classes_[n.a]) out.push_back({lo, hi, kEmpty});
        break;
    case Op::Seq: {
        Edges head;
        for (auto& e : raw_edges(n.a)) add_edge(head, e.lo, e.hi, seq(e.to, n.b));
        if (!nodes_[n.a].nullable) return head;
        const Edges& rest = raw_edges(n.b);
        return overlay({&head, &rest}, [&](const std::vector<i32>& f) { return alt(f); });
    }
    case Op::Rep: {
        i32 rest = rep(n.a, std::max(n.b - 1, 0), n.c == kUnbounded ? kUnbounded : n.c - 1);
        for (auto& e : raw_edges(n.a)) add_edge(out, e.lo, e.hi, seq(e.to, rest));
        break;
    }
    case Op::Alt:
    case Op::Both: {
        std::vector<const Edges*> parts;
        for (i32 k : n.kids) parts.push_back(&raw_edges(k));
        size_t all = n.kids.size();
        if (n.op == Op::Alt) return overlay(parts, [&](const std::vector<i32>& f) { return alt(f); });
        return overlay(parts, [&](const std::vector<i32>& f) { return f.size() == all ? both(f) : i32(kNothing); });
    }
    case Op::Not: {
        const Edges &inner = raw_edges(n.a), whole = {{0, 0xD7FF, kNothing}, {0xE000, kLastCodePoint, kNothing}};
        return overlay({&inner, &whole}, [&](const std::vector<i32>& f) { return negate(f[0]); });
    }
    case Op::Compare:
    case Op::Multiple: return derive_numeral(id);
    default: return derive_json(n);
    }
    return out;
}

Edges Terms::derive_set(const Node& n) {
    Edges out;
    auto& texts = sets_[n.a];
    i32 at = n.b, depth = n.d;
    if (i32(texts[at].size()) == depth) at++;
    while (at < n.c) {
        char32_t c = texts[at][depth];
        auto end = std::partition_point(texts.begin() + at, texts.begin() + n.c, [&](const Text& t) { return t[depth] == c; });
        i32 stop = i32(end - texts.begin());
        out.push_back({u32(c), u32(c), set_at(n.a, at, stop, depth + 1)});
        at = stop;
    }
    return out;
}

i32 Terms::target(i32 a, u32 code_point) {
    for (auto& e : edges(a))
        if (e.lo <= code_point && code_point <= e.hi) return e.to;
    return kNothing;
}

bool Terms::meets(i32 a, u32 lo, u32 hi) {
    for (auto& e : edges(a))
        if (e.lo <= hi && lo <= e.hi) return true;
    return false;
}

i32 Terms::low(i32 a, i32 high, i32 step, i32 value) {  // after a high surrogate: its low one is still to come
    u32 base = 0x10000 + (u32(high - 0xD800) << 10);
    if (step < 2) return meets(a, base, base + 1023) ? node(Op::Low, false, nodes_[a].logic, a, high, step, 0) : kNothing;
    i32 bits = 4 * (6 - step), first = std::max(value << bits, 0xDC00), last = std::min(((value + 1) << bits) - 1, 0xDFFF);
    if (first > last) return kNothing;
    if (step == 6) return json(target(a, base + u32(value - 0xDC00)));
    return meets(a, base + u32(first - 0xDC00), base + u32(last - 0xDC00)) ? node(Op::Low, false, nodes_[a].logic, a, high, step, value) : kNothing;
}

i32 Terms::hex(i32 a, i32 digits, i32 value) {
    i32 bits = 4 * (4 - digits), first = value << bits, last = ((value + 1) << bits) - 1;
    if (digits == 4) return value >= 0xD800 && value < 0xDC00 ? low(a, value, 0, 0) : json(target(a, u32(value)));
    bool some = meets(a, u32(first), u32(last));  // classes hold no surrogates
    i32 high_first = std::max(first, 0xD800), high_last = std::min(last, 0xDBFF);
    if (high_first <= high_last) some |= meets(a, 0x10000 + (u32(high_first - 0xD800) << 10), 0x103FF + (u32(high_last - 0xD800) << 10));
    return some ? node(Op::Hex, false, nodes_[a].logic, a, digits, value) : kNothing;
}

Edges Terms::derive_json(const Node& n) {
    Edges out;
    i32 a = n.a;
    auto digits = [&](const std::function<i32(i32)>& after) {
        for (i32 h = 0; h < 10; h++) add_edge(out, '0' + h, '0' + h, after(h));
        for (char base : {'A', 'a'})
            for (i32 h = 10; h < 16; h++) add_edge(out, base + h - 10, base + h - 10, after(h));
    };
    if (n.op == Op::Json) {
        Edges inner = edges(a);
        for (auto [lo, hi] : {std::pair<u32, u32>{0x20, 0x21}, {0x23, 0x5B}, {0x5C, 0x5C}, {0x5D, kLastCodePoint}}) {
            if (lo == 0x5C) {
                if (!inner.empty()) add_edge(out, lo, hi, node(Op::Esc, false, n.logic, a));
                continue;
            }
            for (auto& e : inner)
                if (std::max(lo, e.lo) <= std::min(hi, e.hi)) add_edge(out, std::max(lo, e.lo), std::min(hi, e.hi), json(e.to));
        }
    } else if (n.op == Op::Esc) {
        static const std::pair<char, char> kShort[] = {{'"', '"'}, {'/', '/'}, {'\\', '\\'}, {'b', 8}, {'f', 12}, {'n', 10}, {'r', 13}, {'t', 9}};
        for (auto [written, meant] : kShort) add_edge(out, written, written, json(target(a, u32(meant))));
        add_edge(out, 'u', 'u', hex(a, 0, 0));
    } else if (n.op == Op::Hex) {
        i32 count = n.b + 1, value = n.c * 16;
        digits([&](i32 h) { return hex(a, count, value + h); });
    } else {
        i32 high = n.b, step = n.c, value = n.d * 16;
        if (step < 2) add_edge(out, step ? 'u' : '\\', step ? 'u' : '\\', low(a, high, step + 1, 0));
        else digits([&](i32 h) { return low(a, high, step + 1, value + h); });
    }
    return out;
}

}  // namespace ramet
