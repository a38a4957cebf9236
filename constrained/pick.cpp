// Members in any order, each at most once: a Pick rule. What was used is an interned set in the frame, so only sets visited exist.
//
// Kids: the items that must occur, those that may, the extra (any number of times; nothing matches it if there is none), the separator.
// Frame: a = the set of used items, b = 2 * members so far + 1 after a separator. Without an upper bound members count to max(lo, 1).
#include "automaton.h"

namespace ramet {

i32 Grammar::used_set(i32 rule, std::vector<u64> bits, i32 left, u64 least) {
    auto [at, fresh] = used_index_.emplace(std::make_pair(rule, bits), i32(used_.size()));
    if (fresh) {
        hold(120 + 16 * bits.size());
        used_.push_back({std::move(bits), left, least});
    }
    return at->second;
}

i32 Grammar::used_too(i32 rule, i32 used, i32 item) {
    const Rule& r = rules_[rule];
    std::vector<u64> bits = used_[used].bits;
    bits[size_t(item) / 64] |= 1ull << (item % 64);
    bool required = item < r.required;
    return used_set(rule, std::move(bits), used_[used].left - required, used_[used].least - (required ? rules_[r.kids[size_t(item)]].dist : 0));
}

i32 Grammar::nothing_used(i32 rule) {
    const Rule& r = rules_[rule];
    u64 least = 0;
    for (i32 i = 0; i < r.required; i++) least += rules_[r.kids[size_t(i)]].dist;
    return used_set(rule, std::vector<u64>((r.kids.size() + 63) / 64), r.required, least);
}

static bool has(const std::vector<u64>& bits, i32 i) { return bits[size_t(i) / 64] >> (i % 64) & 1; }

// Fewest bytes to the end of the list, `count` members and perhaps a separator being written.
u64 Grammar::pick_dist(const Rule& r, const std::vector<u64>& bits, i32 left, u64 least, i32 count, bool separated) {
    i32 items = i32(r.kids.size()) - 2, members = std::max({left, r.lo - count, i32(separated)});
    u64 separator = rules_[r.kids[size_t(items) + 1]].dist, separators = u64(members) - (members && (separated || count == 0));
    if (i32 more = members - left) {
        std::vector<u64> costs;
        for (i32 i = r.required; i < items; i++)
            if (!has(bits, i)) costs.push_back(rules_[r.kids[size_t(i)]].dist);
        std::sort(costs.begin(), costs.end());
        u64 extra = rules_[r.kids[size_t(items)]].dist;
        for (i32 i = 0; i < more; i++) {
            u64 cost = std::min(extra, size_t(i) < costs.size() ? costs[size_t(i)] : u64(kFar));
            if (cost >= kFar || cost == extra) return cost >= kFar ? u64(kFar) : least + u64(more - i) * extra + separators * separator;
            least += cost;
        }
    }
    return std::min<u64>(kFar, least + separators * separator);
}

u64 Grammar::pick_dist(const Rule& r) {
    if (r.hi != kUnbounded && std::max(r.lo, r.required) > r.hi) return kFar;
    u64 least = 0;
    for (i32 i = 0; i < r.required; i++) least += rules_[r.kids[size_t(i)]].dist;
    return least >= kFar ? kFar : pick_dist(r, std::vector<u64>((r.kids.size() + 63) / 64), r.required, least, 0, false);
}

// Whether `rule` may follow as the next member, `count` with it, so that the required ones still have room.
bool Grammar::may_pick(const Rule& r, i32 member, i32 count, i32 left) {
    if (rules_[r.kids[size_t(member)]].dist >= kFar) return false;
    return r.hi == kUnbounded || count + left - (member < r.required) <= r.hi;
}

void Grammar::pick_member(i32 rule, i32 used, i32 count, i32 below, Set& out) {
    const Rule& r = rules_[rule];
    i32 items = i32(r.kids.size()) - 2, left = used_[used].left, next = r.hi == kUnbounded ? std::min(count + 1, std::max(r.lo, 1)) : count + 1;
    for (i32 i = 0; i < items; i++)
        if (!has(used_[used].bits, i) && may_pick(r, i, count + 1, left)) enter(r.kids[size_t(i)], push(rule, used_too(rule, used, i), 2 * next, below), out);
    if (may_pick(r, items, count + 1, left)) enter(r.kids[size_t(items)], push(rule, used, 2 * next, below), out);
}

void Grammar::resume_pick(const Frame& f, Set& out) {
    const Rule& r = rules_[f.rule];
    i32 items = i32(r.kids.size()) - 2, count = f.b / 2, left = used_[f.a].left;
    if (f.b % 2) return pick_member(f.rule, f.a, count, f.below, out);
    if (left == 0 && count >= r.lo) resume(f.below, out);
    for (i32 i = 0; i <= items; i++)
        if ((i == items || !has(used_[f.a].bits, i)) && may_pick(r, i, count + 1, left)) {
            enter(r.kids[size_t(items) + 1], push(f.rule, f.a, f.b + 1, f.below), out);
            return;
        }
}

}  // namespace ramet
