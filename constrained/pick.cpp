// Members in any order, each at most once: a Pick rule. What was used is an interned set in the frame, so only sets visited exist.
//
// Kids: the items that must occur, those that may, the extra (any number of times; nothing matches it if there is none), the separator.
// Frame: a = the set of used items, c = one more that is being written (or -1), b = 2 * members so far + 1 after a separator; without an
// upper bound one member counts as many. The lower bound counts different members. Extras may repeat a name, so they are one: the extra is
// put in the set as soon as that matters.
#include "automaton.h"

namespace ramet {

static bool has(const std::vector<u64>& bits, i32 i) { return bits[size_t(i) / 64] >> (i % 64) & 1; }

static void add(std::vector<u64>& bits, i32 i) { bits[size_t(i) / 64] |= 1ull << (i % 64); }

i32 Grammar::used_set(i32 rule, Used used) {
    auto [at, fresh] = used_index_.emplace(std::make_pair(rule, used.bits), i32(used_.size()));
    if (fresh) {
        hold(120 + 16 * used.bits.size());
        used_.push_back(std::move(used));
    }
    return at->second;
}

Used Grammar::no_use(const Rule& r) {
    Used none{std::vector<u64>((r.kids.size() + 63) / 64), r.required, 0, 0};
    for (i32 i = 0; i < r.required; i++) none.least += rules_[r.kids[size_t(i)]].dist;
    return none;
}

// `used` with one more member, but for the bits: they cost most, and matter least often.
Used Grammar::counted(const Rule& r, const Used& used, i32 member) {
    bool required = member < r.required;
    return {{}, used.left - required, used.distinct + 1, used.least - (required ? rules_[r.kids[size_t(member)]].dist : 0)};
}

i32 Grammar::used_too(i32 rule, i32 used, i32 member) {
    Used more = counted(rules_[rule], used_[used], member);
    more.bits = used_[used].bits;
    add(more.bits, member);
    return used_set(rule, std::move(more));
}

// Fewest bytes to the end of the list, `count` members and perhaps a separator being written. Where no optional member is needed,
// nobody looks at the bits.
u64 Grammar::pick_dist(const Rule& r, const Used& used, i32 count, bool separated) {
    i32 items = i32(r.kids.size()) - 2, members = std::max(used.left, r.lo - used.distinct);
    bool idle = separated && members == 0;  // something must follow the separator, were it one more extra
    members += idle;
    u64 separator = rules_[r.kids[size_t(items) + 1]].dist, separators = u64(members) - (members && (separated || count == 0)), least = used.least;
    if (i32 more = members - used.left) {
        std::vector<u64> costs;
        for (i32 i = r.required; i <= items; i++)
            if (!has(used.bits, i) || (idle && i == items)) costs.push_back(rules_[r.kids[size_t(i)]].dist);
        std::sort(costs.begin(), costs.end());
        for (i32 i = 0; i < more; i++) least += size_t(i) < costs.size() ? costs[size_t(i)] : u64(kFar);
    }
    return std::min<u64>(kFar, least + separators * separator);
}

u64 Grammar::pick_dist(const Frame& f) {
    const Rule& r = rules_[f.rule];
    const Used& used = used_[f.a];
    if (f.c < 0) return pick_dist(r, used, f.b / 2, f.b % 2);
    Used more = counted(r, used, f.c);
    if (r.lo - more.distinct > more.left) {
        more.bits = used.bits;
        add(more.bits, f.c);
    }
    return pick_dist(r, more, f.b / 2, f.b % 2);
}

u64 Grammar::pick_dist(const Rule& r) {
    if (r.hi != kUnbounded && std::max(r.lo, r.required) > r.hi) return kFar;
    return pick_dist(r, no_use(r), 0, false);
}

// Whether `member` may follow after `count` others, so that those still needed have room.
bool Grammar::may_pick(const Rule& r, const Used& used, i32 member, i32 count) {
    bool extra = member == i32(r.kids.size()) - 2, known = has(used.bits, member);
    if ((known && !extra) || rules_[r.kids[size_t(member)]].dist >= kFar) return false;
    if (r.hi == kUnbounded) return true;
    i32 left = used.left - (member < r.required), missing = r.lo - used.distinct - !known;
    return count + 1 + std::max({left, missing, 0}) <= r.hi;
}

void Grammar::pick_member(i32 rule, i32 used, i32 count, i32 below, Set& out) {
    const Rule& r = rules_[rule];
    i32 items = i32(r.kids.size()) - 2, next = r.hi == kUnbounded ? 1 : count + 1;
    for (i32 i = 0; i <= items; i++) {
        if (!may_pick(r, used_[used], i, count)) continue;
        bool counts = i < items || (used_[used].distinct < r.lo && !has(used_[used].bits, i));
        enter(r.kids[size_t(i)], push(rule, used, 2 * next, below, counts ? i : -1), out);
    }
}

void Grammar::resume_pick(const Frame& f, Set& out) {
    if (f.c >= 0) return resume_pick({f.rule, used_too(f.rule, f.a, f.c), f.b, f.below}, out);  // only now: most that begin never end
    const Rule& r = rules_[f.rule];
    i32 items = i32(r.kids.size()) - 2, count = f.b / 2;
    if (f.b % 2) return pick_member(f.rule, f.a, count, f.below, out);
    if (used_[f.a].left == 0 && used_[f.a].distinct >= r.lo) resume(f.below, out);
    for (i32 i = 0; i <= items; i++)
        if (may_pick(r, used_[f.a], i, count)) {
            enter(r.kids[size_t(items) + 1], push(f.rule, f.a, f.b + 1, f.below), out);
            return;
        }
}

}  // namespace ramet
