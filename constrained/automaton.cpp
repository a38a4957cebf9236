#include "automaton.h"

#include <cstring>

namespace ramet {

Grammar::Grammar(std::shared_ptr<Store> store, std::vector<i32> eos, Limits limits)
    : store_(std::move(store)), eos_(std::move(eos)), limits_(limits), frames_(1, Frame{-1, 0, 0, 0}), frame_dist_(1, 0) {}

void Grammar::hold(u64 more) {
    bytes_ += more;
    store_->terms.tick();
    if (bytes_ > limits_.bytes) throw Limit("the constraint passes its memory limit");
}

Metered::Metered(Grammar& grammar) : g(grammar) {
    Terms& terms = g.store_->terms;
    terms.waiting++;
    terms.lock.lock();
    terms.waiting--;
    before = g.store_->held();
    terms.work = {};
    terms.work.seconds = g.limits_.seconds;
    terms.work.byte_limit = terms.bytes + g.limits_.bytes - std::min(g.limits_.bytes, g.bytes_);
}

Metered::~Metered() {
    g.bytes_ += g.store_->held() - before - std::min(g.store_->held() - before, g.store_->terms.work.others);
    g.store_->terms.lock.unlock();
}

// ---- stacks

i32 Grammar::push(i32 rule, i32 a, i32 b, i32 below, i32 c) {
    u64 h = mixed(mixed(u64(u32(rule)) << 32 | u32(below), u64(u32(a)) << 32 | u32(b)), u64(u32(c)));
    i32 known = frame_index_.find(h, [&](i32 i) {
        const Frame& f = frames_[i];
        return f.rule == rule && f.a == a && f.b == b && f.below == below && f.c == c;
    });
    if (known >= 0) return known;
    const Rule& r = rules_[rule];
    u64 own = 0;
    if (r.op == G::Pick) own = pick_dist({rule, a, b, below, c});
    else if (r.op == G::Rep) own = a ? u64(a) * rules_[r.kids[0]].dist : 0;
    else
        for (size_t i = size_t(a); i < r.kids.size(); i++) own += rules_[r.kids[i]].dist;
    frames_.push_back({rule, a, b, below, c});
    frame_dist_.push_back(u32(std::min<u64>(kFar, own + frame_dist_[below])));
    frame_index_.add(h, i32(frames_.size()) - 1);
    hold(48);
    return i32(frames_.size()) - 1;
}

// Adds the terms that may be written next when `rule` is to be matched and then `stack`.
void Grammar::enter(i32 rule, i32 stack, Set& out) {
    const Rule& r = rules_[rule];
    if (r.dist >= kFar) return;
    switch (r.op) {
    case G::Term: {
        i32 s = store_->border(r.term);
        if (store_->goes_on(s)) out.configs.push_back({s, stack});
        if (store_->at(s).accept) resume(stack, out);
        break;
    }
    case G::Seq:
        if (r.kids.empty()) resume(stack, out);
        else enter(r.kids[0], r.kids.size() > 1 ? push(rule, 1, 0, stack) : stack, out);
        break;
    case G::Alt:
        for (i32 k : r.kids) enter(k, stack, out);
        break;
    case G::Rep: {
        if (r.lo == 0) resume(stack, out);
        if (r.hi == 0) break;
        i32 again = r.hi == 1 ? stack : push(rule, std::max(r.lo - 1, 0), r.hi == kUnbounded ? r.hi : r.hi - 1, stack);
        if (again != stack && rules_[r.kids[0]].nullable) resumed_.insert(again);  // an empty turn adds nothing
        enter(r.kids[0], again, out);
        break;
    }
    case G::Ref: enter(r.kids[0], stack, out); break;
    case G::Pick:
        if (r.required == 0 && r.lo == 0) resume(stack, out);
        pick_member(rule, used_set(rule, no_use(r)), 0, stack, out);
        break;
    }
}

void Grammar::resume(i32 stack, Set& out) {
    if (!resumed_.insert(stack).second) return;
    if (stack == 0) {
        out.accept = true;
        return;
    }
    Frame f = frames_[stack];
    const Rule& r = rules_[f.rule];
    if (r.op == G::Seq) {
        i32 rest = f.a + 1 < i32(r.kids.size()) ? push(f.rule, f.a + 1, 0, f.below) : f.below;
        enter(r.kids[f.a], rest, out);
        return;
    }
    if (r.op == G::Pick) return resume_pick(f, out);
    if (f.a == 0) resume(f.below, out);
    if (f.b == 0) return;
    i32 again = f.b == 1 ? f.below : push(f.rule, std::max(f.a - 1, 0), f.b == kUnbounded ? f.b : f.b - 1, f.below);
    if (again != f.below && rules_[r.kids[0]].nullable) resumed_.insert(again);
    enter(r.kids[0], again, out);
}

const Set& Grammar::closure(i32 stack) {
    if (size_t(stack) >= closures_.size()) closures_.resize(frames_.size() * 2);
    if (!closures_[stack]) {
        auto out = std::make_unique<Set>();
        resumed_.clear();
        resume(stack, *out);
        std::sort(out->configs.begin(), out->configs.end());
        out->configs.erase(std::unique(out->configs.begin(), out->configs.end()), out->configs.end());
        hold(64 + 8 * out->configs.size());
        if (size_t(stack) >= closures_.size()) closures_.resize(frames_.size() * 2);
        closures_[stack] = std::move(out);
    }
    return *closures_[stack];
}

i32 Grammar::closure_state(i32 stack) {
    if (size_t(stack) >= closure_states_.size()) closure_states_.resize(frames_.size() * 2, -1);
    if (closure_states_[stack] < 0) {
        i32 s = intern(closure(stack));
        if (size_t(stack) >= closure_states_.size()) closure_states_.resize(frames_.size() * 2, -1);
        closure_states_[stack] = s;
    }
    return closure_states_[stack];
}

// ---- states

i32 Grammar::intern(Set set) {
    u64 h = mixed(set.accept, set.configs.size());
    for (auto& c : set.configs) h = mixed(h, u64(u32(c.term)) << 32 | u32(c.stack));
    i32 known = state_index_.find(h, [&](i32 i) { return states_[i].set.accept == set.accept && states_[i].set.configs == set.configs; });
    if (known >= 0) return known;
    i32 s = i32(states_.size());
    hold(sizeof(State) + 64 + 8 * set.configs.size());
    states_.emplace_back();
    states_.back().set = std::move(set);
    state_index_.add(h, s);
    return s;
}

const ByteSet& Grammar::live(i32 s) {
    State& t = states_[s];
    if (!t.looked) {
        for (auto& c : t.set.configs) t.live |= store_->expanded(c.term).live;
        t.looked = true;
    }
    return t.live;
}

i32 Grammar::step(i32 s, uint8_t b) {
    State* t = &states_[s];
    if (t->table) {
        if (t->table[b] != -2) return t->table[b];
    } else {
        for (auto [byte, to] : t->few)
            if (byte == b) return to;
    }
    Set out;
    size_t sources = 0;
    for (auto& c : t->set.configs) {
        i32 to = store_->next(c.term, b);
        if (to < 0) continue;
        sources++;
        const TState& ts = store_->at(to);
        if (store_->goes_on(to)) out.configs.push_back({to, c.stack});
        if (ts.accept) {
            const Set& more = closure(c.stack);
            out.configs.insert(out.configs.end(), more.configs.begin(), more.configs.end());
            out.accept |= more.accept;
        }
    }
    if (out.configs.size() > 1) {
        std::sort(out.configs.begin(), out.configs.end());
        out.configs.erase(std::unique(out.configs.begin(), out.configs.end()), out.configs.end());
    }
    i32 to = sources ? intern(std::move(out)) : -1;
    t = &states_[s];
    if (!t->table && t->few.size() < 8) t->few.push_back({b, to});
    else {
        if (!t->table) {
            t->table.reset(new i32[256]);
            std::fill(t->table.get(), t->table.get() + 256, -2);
            for (auto [byte, known] : t->few) t->table[byte] = known;
            hold(1024);
        }
        t->table[b] = to;
    }
    return to;
}

i32 Grammar::advance(i32 s, i32 id) {
    auto [from, to] = store_->token(id);
    if (from == to) return -1;
    for (; from < to && s >= 0; ++from) s = step(s, *from);
    return s;
}

i32 Grammar::known_advance(i32 s, i32 id) const {
    auto [from, to] = store_->token(id);
    if (from == to) return -1;
    for (; from < to && s >= 0; ++from) {
        const State& t = states_[s];
        i32 next = t.table ? t.table[*from] : -2;
        for (size_t i = 0; !t.table && i < t.few.size() && next == -2; i++)
            if (t.few[i].first == *from) next = t.few[i].second;
        s = next;
    }
    return s;
}

u32 Grammar::dist(i32 s) {
    State& t = states_[s];
    if (t.dist > kFar) {
        u32 best = t.set.accept ? 0 : kFar;
        for (auto& c : t.set.configs) best = std::min(best, std::min(kFar, store_->dist(c.term) + frame_dist_[c.stack]));
        t.dist = best;
    }
    return t.dist;
}

std::string Grammar::forced(i32 s, size_t most) {
    std::string out;
    size_t whole = 0;  // bytes up to the last border of characters
    while (out.size() < most && !accepting(s)) {
        i32 only = -1;
        for (auto& c : states_[s].set.configs) {
            const TState& t = store_->expanded(c.term);
            if (t.fan != 1 || (only >= 0 && only != t.few[0].first)) return out.substr(0, whole);
            only = t.few[0].first;
        }
        if (only < 0) break;
        out.push_back(char(only));
        s = step(s, uint8_t(only));
        auto& configs = states_[s].set.configs;
        if (configs.empty() || store_->at(configs[0].term).node >= 0) whole = out.size();
    }
    return out.substr(0, whole);
}

}  // namespace ramet
