// Which ids may come next, and how many are needed to finish.
//
// The mask of a state is the union of what its terms decide alone (Inner, shared by all grammars) and of the ids that leave a term,
// which are walked through the stack. A term with few ways on is simply walked. What is found is kept with the state.
#include <cstring>

#include "automaton.h"

namespace ramet {

constexpr u32 kLongest = 20000;  // bytes: a longer way to the end is counted, not tokenized

static void set_bit(Bits& bits, i32 id) { bits[size_t(id) >> 5] |= 1u << (id & 31); }

// The state with the same mask in which far counters are no counters.
i32 Grammar::canon(i32 s) {
    if (states_[s].canon < 0) {
        Set set = states_[s].set;
        i32 height = store_->trie.height();
        for (auto& c : set.configs) {
            c.term = store_->canon(c.term);
            c.stack = canon_stack(c.stack, height);
        }
        std::sort(set.configs.begin(), set.configs.end());
        set.configs.erase(std::unique(set.configs.begin(), set.configs.end()), set.configs.end());
        i32 to = intern(std::move(set));
        states_[s].canon = to;
        states_[to].canon = to;
    }
    return states_[s].canon;
}

i32 Grammar::canon_stack(i32 stack, i32 height) {
    if (stack == 0 || height <= 0) return stack;
    if (size_t(stack) < canon_stacks_.size() && canon_stacks_[stack] >= 0) return canon_stacks_[stack];
    Frame f = frames_[stack];
    i32 below = canon_stack(f.below, height), to = stack, a = f.a, b = f.b;
    if (rules_[f.rule].op == G::Rep && rules_[rules_[f.rule].kids[0]].dist > 0) {
        a = std::min(a, height);
        if (b >= height) b = kUnbounded;
    }
    if (below != f.below || a != f.a || b != f.b) to = push(f.rule, a, b, below, f.c);
    if (size_t(stack) >= canon_stacks_.size()) canon_stacks_.resize(frames_.size() * 2, -1);
    return canon_stacks_[stack] = to;
}

// Calls visit(child node, state) for each child of trie node n that is live from s.
template <class F> void Grammar::each_child(i32 n, i32 s, F&& visit) {
    const Trie& trie = store_->trie;
    const ByteSet& bytes = live(s);
    if (bytes.count() <= 4) {
        bytes.each([&](uint8_t b) {
            if (i32 c = trie.find(n, b); c >= 0) visit(c, step(s, b));
        });
        return;
    }
    for (i32 c = n + 1; c < trie[n].end; c = trie[c].end)
        if (bytes.has(trie[c].byte)) visit(c, step(s, trie[c].byte));
}

// Calls found(node, state) for every trie node below n that holds tokens and is live from s.
template <class F> void Grammar::walk(i32 n, i32 s, F&& found) {
    const Trie& trie = store_->trie;
    if (!trie[n].height || states_[s].set.configs.empty()) return;
    store_->terms.rest();
    each_child(n, s, [&](i32 c, i32 to) {
        if (trie.holds(c)) found(c, to);
        walk(c, to, found);
    });
}

// Calls found(node, state) for every trie node whose tokens leave the wide term of `c` and live on in its stack. False, and nothing
// found, when tokens may leave it in more than one place: then only a walk of everything is exact.
template <class F> bool Grammar::leave(const Config& c, F&& found) {
    const Inner& inner = store_->inner(c.term);
    const Trie& trie = store_->trie;
    i32 after = closure_state(c.stack);
    const ByteSet& next = live(after);
    if (next.meets(inner.inside)) return false;
    next.each([&](uint8_t b) {
        if (inner.first[b] == inner.first[size_t(b) + 1]) return;
        i32 to = step(after, b);
        for (i32 i = inner.first[b]; i < inner.first[size_t(b) + 1]; i++) {
            i32 n = inner.leaves[size_t(i)];
            if (trie.holds(n)) found(n, to);
            walk(n, to, found);
        }
    });
    return true;
}

const Mask& Grammar::mask(i32 s) {
    s = canon(s);
    if (states_[s].mask) return *states_[s].mask;
    auto out = std::make_unique<Mask>();
    const Trie& trie = store_->trie;
    Set narrow;
    Bits bits;
    for (auto c : Set(states_[s].set).configs) {
        if (!store_->wide(c.term)) {
            narrow.configs.push_back(c);
            continue;
        }
        if (bits.empty()) bits.assign(size_t(store_->words), 0);
        bool left = leave(c, [&](i32 n, i32) {
            trie.each_id(n, [&](i32 id) { set_bit(bits, id); });
        });
        const Bits& own = store_->inner(c.term).bits;
        for (size_t i = 0; i < bits.size(); i++) bits[i] |= own[i];
        if (!left) narrow.configs.push_back(c);
    }
    if (!narrow.configs.empty()) {
        bool all = narrow.configs.size() == states_[s].set.configs.size();
        std::vector<u32> ids;
        walk(0, all ? s : intern(std::move(narrow)), [&](i32 n, i32) { trie.each_id(n, [&](i32 id) { ids.push_back(u32(id)); }); });
        if (bits.empty() && ids.size() > size_t(store_->words) / 2) bits.assign(size_t(store_->words), 0);
        if (bits.empty()) out->sparse = true, out->data = std::move(ids);
        else
            for (u32 id : ids) set_bit(bits, i32(id));
    }
    if (!bits.empty()) out->data = std::move(bits);
    else out->sparse = true;
    hold(32 + 4 * out->data.size());
    states_[s].mask = std::move(out);
    return *states_[s].mask;
}

void Grammar::fill(i32 s, u32* row, i32 budget) {
    const Mask& m = mask(s);
    size_t words = size_t(store_->words);
    if (m.sparse) {
        std::memset(row, 0, 4 * words);
        for (u32 id : m.data) row[id >> 5] |= 1u << (id & 31);
    } else std::memcpy(row, m.data.data(), 4 * words);
    if (budget >= 0 && need(s) < kFar && u32(budget) <= worst(s)) {  // worst counts the tokens after the next one
        const auto& needed = needs(s);
        for (size_t w = 0; w < words; w++)
            for (u32 left = row[w]; left; left &= left - 1) {
                u32 bit = u32(__builtin_ctz(left));
                if (needed[32 * w + bit] + 1 > budget) row[w] &= ~(1u << bit);
            }
    }
    if (accepting(s) && budget != 0)
        for (i32 id : eos_) row[id >> 5] |= 1u << (id & 31);
}

// ---- how far to the end

i32 Grammar::shortest_byte(i32 s) {  // the first byte of a shortest way to acceptance; a token of its own if any is, and always the same one
    if (states_[s].way != -2) return states_[s].way;
    u32 want = dist(s) - 1;
    int best = -1;
    live(s).each([&](uint8_t b) {
        bool better = best < 0 || (store_->single.has(b) && !store_->single.has(size_t(best)));
        if (better && dist(step(s, b)) == want) best = b;
    });
    return states_[s].way = int16_t(best);
}

// Along the shortest text: fewest tokens that write it, plus the end token where the text could still go on.
u32 Grammar::need(i32 s) {
    if (states_[s].need <= kFar) return states_[s].need;
    if (dist(s) > kLongest) return states_[s].need = bytewise_ ? std::min(kFar, dist(s) + 1) : kFar;  // a token a byte
    const Trie& trie = store_->trie;
    std::vector<i32> path{s};
    std::string text;
    size_t fresh = 0;  // states at the front whose need is not known; all behind them is
    while (states_[path.back()].need > kFar || path.size() <= fresh + size_t(trie.height())) {
        i32 at = path.back();
        if (dist(at) == 0 && states_[at].need > kFar) states_[at].need = finished(at) ? 0 : 1;
        if (states_[at].need > kFar) fresh = path.size();
        if (dist(at) == 0) break;
        i32 b = shortest_byte(at);
        if (b < 0) return states_[s].need = kFar;
        text.push_back(char(b));
        path.push_back(step(at, uint8_t(b)));
    }
    for (size_t i = fresh; i-- > 0;) {
        u32 best = kFar;
        i32 n = 0;
        for (size_t j = i; j < text.size() && (n = trie.find(n, uint8_t(text[j]))) >= 0; j++)
            if (trie.holds(n)) best = std::min(best, states_[path[j + 1]].need + 1);
        states_[path[i]].need = best;
    }
    return states_[s].need;
}

// No allowed id leaves more than this many tokens to write, the end token included. Cheap, and only as tight as it is cheap.
u32 Grammar::worst(i32 s) {
    if (states_[s].worst <= kFar) return states_[s].worst;
    Set set = states_[s].set, narrow;
    u32 worst = bytewise_ ? 1 : kFar;
    bool single = set.configs.size() == 1;
    auto found = [&](i32, i32 to) { worst = std::max(worst, single ? need(to) : dist(to) + 1); };
    for (auto& c : set.configs) {
        if (!store_->wide(c.term)) {
            narrow.configs.push_back(c);
            continue;
        }
        i32 canon = store_->canon(c.term);
        u32 far = store_->inner(canon).far + store_->dist(c.term) - store_->dist(canon);
        worst = std::max(worst, far + 1 + (single ? need(closure_state(c.stack)) : frame_dist_[c.stack]));  // 1: the term may still go on at the end
        if (!leave({canon, c.stack}, found)) worst = kFar;
    }
    if (!narrow.configs.empty()) walk(0, intern(std::move(narrow)), found);
    return states_[s].worst = std::min(worst, kFar);
}

const std::vector<uint16_t>& Grammar::needs(i32 s) {
    if (!states_[s].needs) {
        const Trie& trie = store_->trie;
        auto out = std::make_unique<std::vector<uint16_t>>(size_t(store_->words) * 32, 0xFFFF);
        walk(0, s, [&](i32 n, i32 to) {
            uint16_t tokens = uint16_t(std::min(need(to), 0xFFFEu));
            trie.each_id(n, [&](i32 id) { (*out)[size_t(id)] = tokens; });
        });
        hold(2 * out->size());
        states_[s].needs = std::move(out);
    }
    return *states_[s].needs;
}

}  // namespace ramet
