// Terms that read a decimal numeral: a comparison with a bound, and the multiples of a step. Beside them, in a Both, stands a term that says
// what a numeral is. Where nothing more can change the answer, any text may follow. decimals.py is the same in Python.
#include "terms.h"

namespace ramet {

namespace {

i32 order_of(i32 a, i32 b) { return (a > b) - (a < b); }

u64 times(u64 a, u64 b, u64 modulus) { return u64(static_cast<unsigned __int128>(a) * b % modulus); }

}  // namespace

i32 Terms::compare(const Bound& bound) {
    auto [at, fresh] = bound_index_.emplace(bound, i32(bounds_.size()));
    if (fresh) bounds_.push_back(bound), bytes += 200 + 16 * (bound.whole.size() + bound.point.size());
    return compare_at(at->second, false, false, 0, 0);
}

i32 Terms::compare_at(i32 index, bool negative, bool fraction, i32 position, i32 order) {
    const Bound& bound = bounds_[size_t(index)];
    i32 here = order;  // were the numeral to end
    if (fraction) here = position < i32(bound.point.size()) ? -1 : 0;
    else if (position < i32(bound.whole.size())) here = -1;
    else if (!order && !bound.point.empty()) here = -1;
    return node(Op::Compare, decided(bound, negative, here) == any_string, true, index, position, order, negative + 2 * fraction);
}

i32 Terms::decided(const Bound& bound, bool negative, i32 order) const {  // order: of the magnitudes
    i32 result = negative != bound.negative ? (negative ? -1 : 1) : negative ? -order : order;
    return bound.wanted >> (result + 1) & 1 ? any_string : i32(kNothing);
}

i32 Terms::compare_after(i32 id, char c) {
    const Node& n = nodes_[id];
    const Bound& bound = bounds_[size_t(n.a)];
    bool negative = n.d & 1, fraction = n.d & 2;
    if (c == '-') return negative || fraction || n.b ? i32(kNothing) : compare_at(n.a, true, false, 0, 0);
    if (negative != bound.negative) return decided(bound, negative, 1);
    if (c == '.') {
        i32 order = n.b == i32(bound.whole.size()) ? n.c : -1;
        return fraction ? i32(kNothing) : order ? decided(bound, negative, order) : compare_at(n.a, negative, true, 0, 0);
    }
    if (fraction) {
        i32 places = i32(bound.point.size()), order = order_of(c - '0', n.b < places ? bound.point[size_t(n.b)] : 0);
        return order ? decided(bound, negative, order) : compare_at(n.a, negative, true, std::min(n.b + 1, places), 0);
    }
    if (n.b == i32(bound.whole.size())) return decided(bound, negative, 1);
    return compare_at(n.a, negative, false, n.b + 1, n.c ? n.c : order_of(c - '0', bound.whole[size_t(n.b)]));
}

i32 Terms::multiple(const Step& step) {
    auto [at, fresh] = step_index_.emplace(step, i32(steps_.size()));
    if (fresh) steps_.push_back(step), bytes += 150;
    return multiple_at(at->second, -1, 0);
}

i32 Terms::multiple_at(i32 index, i32 read, u64 remainder) {
    const Step& step = steps_[size_t(index)];
    u64 rest = remainder % step.modulus;  // were the numeral to end
    for (i32 i = std::max(read, 0); rest && i < step.places; i++) rest = times(rest, 10, step.modulus);
    return node(Op::Multiple, (rest == 0) == step.wanted, true, index, read, i32(u32(remainder)), i32(u32(remainder >> 32)));
}

i32 Terms::multiple_after(i32 id, char c) {
    const Node& n = nodes_[id];
    const Step& step = steps_[size_t(n.a)];
    u64 remainder = u64(u32(n.d)) << 32 | u32(n.c);
    if (c == '-') return id;
    if (c == '.') return n.b >= 0 ? i32(kNothing) : multiple_at(n.a, 0, remainder);
    if (n.b == step.places) return c == '0' ? id : step.wanted ? i32(kNothing) : any_string;
    remainder = (remainder * 10 + u64(c - '0')) % step.modulus;
    if (remainder && step.decimal()) {  // only the zeros at the end count
        u64 zeros = 1;
        while (remainder % (10 * zeros) == 0) zeros *= 10;
        remainder = zeros;
    }
    return multiple_at(n.a, n.b + (n.b >= 0), remainder);
}

// Fewest characters to a multiple: for each count of digits, whether some digits of that count bring the remainder to zero.
u32 Terms::multiple_dist(i32 id) {
    const Node& n = nodes_[id];
    const Step& step = steps_[size_t(n.a)];
    if (n.nullable) return 0;
    if (!step.wanted) return search(id, false);  // not far
    u64 remainder = u64(u32(n.d)) << 32 | u32(n.c), best = kFar, power = 1;  // of ten, by the count
    for (i32 count = 0; count <= 17; count++, power *= 10) {
        i32 first = n.b < 0 ? 0 : n.b + count, last = n.b < 0 ? std::min(count, step.places) : n.b + count;  // of them after the point, in all
        for (i32 places = first; places <= last && places <= step.places; places++) {
            u64 modulus = step.modulus;
            for (i32 i = places; i < step.places; i++) modulus /= modulus % 10 == 0 ? 10 : modulus % 5 == 0 ? 5 : modulus % 2 == 0 ? 2 : 1;
            u64 rest = times(remainder % modulus, power % modulus, modulus);
            if ((modulus - rest) % modulus < power) best = std::min(best, u64(count + (n.b < 0 && places > 0)));
        }
    }
    return u32(best);
}

Edges Terms::derive_numeral(i32 id) {
    Edges out;
    for (char c : {'-', '.', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'})
        add_edge(out, u32(c), u32(c), nodes_[id].op == Op::Compare ? compare_after(id, c) : multiple_after(id, c));
    return out;
}

}  // namespace ramet
