// Reads a grammar from the flat code that native.py writes: the rules, one record a term, the text of the literals.
#include "automaton.h"

namespace ramet {

namespace {

enum Code { kEmptyCode, kNothingCode, kLitCode, kCharsCode, kSeqCode, kAltCode, kRepCode, kRefCode, kBothCode, kNotCode, kJsonCode, kPickCode, kWordsCode,
            kCompareCode, kMultipleCode };

constexpr i32 kRef = -(1 << 30);
constexpr i32 kLongestSequence = 10000;  // parts; runs of plain characters are one

struct Term { i32 code; i32* args; i32 n; bool regular; const i32* text = nullptr; i32 length = 0; };

// Whether a shortest string of a literal or a class is made of bytes that are tokens. What is made of them is then, too.
bool writable(const Term& t, const Store& store) {
    auto lead = [&](u32 c) { return store.single.has(c < 0x80 ? c : c < 0x800 ? 0xC0 | c >> 6 : c < 0x10000 ? 0xE0 | c >> 12 : 0xF0 | c >> 18); };
    auto good = [&](u32 c) { return lead(c) && (c < 0x80 || store.continuations); };
    if (t.text) return std::all_of(t.text, t.text + t.length, [&](i32 c) { return good(u32(c)); });
    if (t.code != kCharsCode) return true;
    u32 limit = t.args[0] < 0x80 ? 0x7F : t.args[0] < 0x800 ? 0x7FF : t.args[0] < 0x10000 ? 0xFFFF : kLastCodePoint;
    for (i32 k = 0; k < t.n; k += 2) {
        u32 lo = u32(t.args[k]), hi = std::min(u32(t.args[k + 1]), limit), step = limit == 0x7F ? 1 : limit == 0x7FF ? 64 : limit == 0xFFFF ? 4096 : 1 << 18;
        for (u32 c = lo; c <= hi; c = c / step * step + step)  // one of each first byte
            if (good(c)) return true;
    }
    return false;
}

}  // namespace

// code: number of terms, number of rules, start rule, the term of each rule, then records [code, + 256 if regular][count][args...], then
// the text of literals and words, whose args are lengths. An arg that is a term is its number, ~length of a literal, or kRef - a rule.
void Grammar::decode(const i32* source, size_t size, bool whole) {
    std::vector<i32> code(source, source + size);
    i32 *end = code.data() + size, n_terms = code[0], n_rules = code[1], start = code[2];
    i32 *roots = code.data() + 3, *at = roots + n_rules;
    std::vector<Term> terms;
    terms.reserve(2 * size_t(n_terms));
    for (i32 i = 0; i < n_terms && at + 1 < end; i++) {
        terms.push_back({at[0] & 255, at + 2, at[1], at[0] >= 256});
        at += 2 + at[1];
    }
    if (i32(terms.size()) != n_terms || at > end) throw Invalid("a damaged grammar code");
    std::vector<i32> numbers(static_cast<size_t>(n_rules));
    std::iota(numbers.begin(), numbers.end(), 0);
    for (i32 i = 0; i < n_terms; i++) {
        Term& t = terms[size_t(i)];
        i32 *arg = t.args, *stop = t.args + t.n;
        switch (t.code) {
        case kLitCode:
        case kWordsCode:
            t.text = at, t.length = std::accumulate(arg, stop, i32(0));
            at += t.length;
            continue;
        case kRepCode: stop = arg + 1; break;
        case kPickCode: arg += 3; break;
        case kSeqCode:
        case kAltCode:
        case kBothCode:
        case kNotCode:
        case kJsonCode: break;
        default: continue;
        }
        for (; arg < stop; arg++) {
            if (*arg >= 0) continue;
            i32 length = ~*arg, rule = kRef - *arg;
            *arg = i32(terms.size());
            if (rule >= 0 && rule < n_rules) terms.push_back({kRefCode, &numbers[size_t(rule)], 1, false});
            else terms.push_back({kLitCode, nullptr, 0, true, at, length}), at += length;
        }
    }
    if (at != end) throw Invalid("a damaged grammar code");
    Terms& store = store_->terms;
    std::vector<i32> regular(terms.size(), -1), built(terms.size(), -1);

    auto as_text = [&](i32 i) { return Text(terms[i].text, terms[i].text + terms[i].length); };
    auto list = [&](i32 i, std::vector<Text>& out) {  // adds what a literal or words list; whether it is one of them
        const Term& t = terms[i];
        const i32* at = t.text;
        if (t.code == kLitCode) out.push_back(as_text(i));
        else if (t.code == kWordsCode) for (i32 k = 0; k < t.n; at += t.args[k++]) out.emplace_back(at, at + t.args[k]);
        return t.text != nullptr;
    };
    auto as_ranges = [&](i32 i) {
        Ranges out;
        for (i32 k = 0; k < terms[i].n; k += 2) out.push_back({u32(terms[i].args[k]), u32(terms[i].args[k + 1])});
        return out;
    };
    std::function<i32(i32)> term_of = [&](i32 i) -> i32 {  // the regular term i as one node of the store
        if (regular[i] >= 0) return regular[i];
        const Term& t = terms[i];
        std::vector<i32> kids;
        std::vector<Text> texts;
        i32 n = Terms::kNothing;
        switch (t.code) {
        case kEmptyCode: n = Terms::kEmpty; break;
        case kNothingCode: break;
        case kLitCode: n = store.lit(as_text(i)); break;
        case kWordsCode: n = list(i, texts), n = store.set(std::move(texts)); break;
        case kCharsCode: n = store.chars(as_ranges(i)); break;
        case kSeqCode:
            if (t.n > kLongestSequence) throw Limit("a sequence of more than " + std::to_string(kLongestSequence) + " parts in one regular term");
            n = Terms::kEmpty;
            for (i32 k = t.n - 1; k >= 0; k--) n = store.seq(term_of(t.args[k]), n);
            break;
        case kAltCode: {
            for (i32 k = 0; k < t.n; k++) {
                if (!list(t.args[k], texts)) kids.push_back(term_of(t.args[k]));
            }
            if (!texts.empty()) kids.push_back(store.set(std::move(texts)));
            n = store.alt(std::move(kids));
            break;
        }
        case kRepCode: n = store.rep(term_of(t.args[0]), t.args[1], t.args[2]); break;
        case kBothCode:
            for (i32 k = 0; k < t.n; k++) kids.push_back(term_of(t.args[k]));
            n = store.both(std::move(kids));
            break;
        case kNotCode: n = store.negate(term_of(t.args[0])); break;
        case kJsonCode: n = store.json(term_of(t.args[0])); break;
        case kCompareCode: n = store.compare({t.args[1] != 0, {t.args + 3, t.args + 3 + t.args[2]}, {t.args + 3 + t.args[2], t.args + t.n}, t.args[0]}); break;
        case kMultipleCode: n = store.multiple({u64(t.args[0]) << 31 | u64(t.args[1]), t.args[2], t.args[3] != 0}); break;
        default: throw Invalid("a rule inside a regular term");
        }
        return regular[i] = n;
    };

    for (auto& t : terms) bytewise_ &= writable(t, *store_);
    std::vector<i32> pending;  // Ref rules to be joined with their roots
    auto add = [&](Rule r) { rules_.push_back(std::move(r)); return i32(rules_.size()) - 1; };
    std::unordered_map<i32, i32> term_rules;
    auto term_rule = [&](i32 node) {
        auto [known, fresh] = term_rules.emplace(node, i32(rules_.size()));
        if (fresh) {
            Rule r;
            r.term = node;
            r.nullable = store[node].nullable;
            add(std::move(r));
        }
        return known->second;
    };
    auto is_leaf = [&](i32 i) {  // one term, whose states are shared by all grammars
        const Term& t = terms[i];
        if (!t.regular) return false;
        if (t.code == kRepCode) return terms[t.args[0]].code == kCharsCode || store[term_of(t.args[0])].nullable;
        return t.code != kSeqCode && t.code != kAltCode;
    };
    std::function<i32(i32)> rule_of = [&](i32 i) -> i32 {
        if (built[i] >= 0) return built[i];
        const Term& t = terms[i];
        Rule r;
        std::vector<Text> texts;
        i32 made = -1;
        if (is_leaf(i)) return built[i] = term_rule(term_of(i));
        switch (t.code) {
        case kSeqCode:
            r.op = G::Seq;
            for (i32 k = 0; k < t.n; k++) r.kids.push_back(rule_of(t.args[k]));
            break;
        case kAltCode:
            r.op = G::Alt;
            for (i32 k = 0; k < t.n; k++) {
                if (!list(t.args[k], texts)) r.kids.push_back(rule_of(t.args[k]));
            }
            if (!texts.empty()) r.kids.push_back(term_rule(store.set(std::move(texts))));
            break;
        case kRepCode:
            r.op = G::Rep;
            r.kids = {rule_of(t.args[0])};
            r.lo = t.args[1], r.hi = t.args[2];
            break;
        case kPickCode:
            r.op = G::Pick;
            r.required = t.args[0], r.lo = t.args[1], r.hi = t.args[2];
            for (i32 k = 3; k < t.n; k++) r.kids.push_back(rule_of(t.args[k]));
            break;
        default:  // a reference
            r.op = G::Ref;
            r.lo = t.args[0];
            made = add(std::move(r));
            pending.push_back(made);
            return built[i] = made;
        }
        return built[i] = add(std::move(r));
    };
    std::vector<i32> rule_roots(size_t(n_rules), -1);
    if (whole && terms[roots[start]].regular) rule_roots[start] = term_rule(term_of(roots[start]));
    for (i32 i = 0; i < n_rules; i++)
        if (rule_roots[i] < 0) rule_roots[i] = rule_of(roots[i]);
    for (i32 i : pending) rules_[i].kids = {rule_roots[rules_[i].lo]};
    start_ = rule_roots[start];
}

// Shortest match and nullability of every node: repeated until nothing changes (Knuth 1977 would order the work; rules are few).
void Grammar::measure() {
    for (bool changed = true; changed;) {
        changed = false;
        for (auto& r : rules_) {
            u64 dist = 0;
            bool nullable = r.op != G::Alt;
            switch (r.op) {
            case G::Term: dist = store_->terms.dist(r.term), nullable = store_->terms[r.term].nullable; break;
            case G::Alt: dist = kFar;
                for (i32 k : r.kids) dist = std::min<u64>(dist, rules_[k].dist), nullable |= rules_[k].nullable;
                break;
            case G::Rep:
                nullable = r.lo == 0 || rules_[r.kids[0]].nullable;
                dist = r.lo ? u64(r.lo) * rules_[r.kids[0]].dist : 0;
                break;
            case G::Pick: dist = pick_dist(r), nullable = r.required == 0 && r.lo == 0; break;
            default:
                for (i32 k : r.kids) dist += rules_[k].dist, nullable &= rules_[k].nullable;
            }
            u32 capped = u32(std::min<u64>(dist, kFar));
            if (capped < r.dist || nullable != r.nullable) r.dist = std::min(r.dist, capped), r.nullable |= nullable, changed = true;
        }
    }
    for (auto& r : rules_)
        if (r.op == G::Rep && rules_[r.kids[0]].nullable) r.lo = 0;
}

void Grammar::refuse_left_recursion() {  // a rule that comes back to itself before a byte is written
    std::vector<uint8_t> mark(rules_.size(), 0);  // 1 open, 2 done
    struct Visit { i32 rule; size_t kid; };
    for (i32 root = 0; root < i32(rules_.size()); root++) {
        std::vector<Visit> path;
        if (!mark[root]) path.push_back({root, 0}), mark[root] = 1;
        while (!path.empty()) {
            auto& [rule, kid] = path.back();
            const Rule& r = rules_[rule];
            bool more = kid < r.kids.size() && (r.op != G::Seq || kid == 0 || rules_[r.kids[kid - 1]].nullable);
            if (!more) {
                mark[rule] = 2;
                path.pop_back();
                continue;
            }
            i32 next = r.kids[kid++];
            if (mark[next] == 1) throw Invalid("left recursion: a rule uses itself before anything is written");
            if (!mark[next]) mark[next] = 1, path.push_back({next, 0});
        }
    }
}

void Grammar::load(const i32* code, size_t n, bool whole) {
    decode(code, n, whole);
    measure();
    refuse_left_recursion();
    if (rules_[start_].dist >= kFar) throw Invalid("the constraint has no document: nothing can satisfy it");
    hold(100 * rules_.size());
    Set first;
    resumed_.clear();
    enter(start_, 0, first);
    std::sort(first.configs.begin(), first.configs.end());
    first.configs.erase(std::unique(first.configs.begin(), first.configs.end()), first.configs.end());
    start_ = intern(std::move(first));
}

}  // namespace ramet
