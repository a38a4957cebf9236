// The C interface that native.py calls. Errors are return codes; the message lies in the caller's buffer.
// The library is compiled as this one file, so that each header is read once.
#include "automaton.cpp"
#include "bytes.cpp"
#include "decimals.cpp"
#include "distance.cpp"
#include "inner.cpp"
#include "load.cpp"
#include "masks.cpp"
#include "pick.cpp"
#include "terms.cpp"

using namespace ramet;

namespace {

struct Vocabulary {
    std::vector<uint8_t> text;
    std::vector<int64_t> offset;
    std::vector<i32> eos;
    u64 store_limit;
    std::mutex lock;
    std::shared_ptr<Store> store;
    // Terms and masks are kept for later grammars until the limit; then a fresh store is begun, and the old one lives as long as its grammars.
    std::shared_ptr<Store> current() {
        std::lock_guard<std::mutex> hold(lock);
        if (!store || store->held() > store_limit) store = std::make_shared<Store>(i32(offset.size()) - 1, text.data(), offset.data());
        return store;
    }
};

void say(char* error, size_t room, const char* what) {
    std::strncpy(error, what, room - 1);
    error[room - 1] = 0;
}

constexpr i32 kUnknown = -9, kLimit = -2, kInvalid = -3, kFailed = -4;

// Every call on a grammar: one at a time, and with the store's lock, unless `known` answers from what is there already.
template <class Known, class F> i32 guarded(Grammar* g, Known&& known, F&& act) {
    std::lock_guard<std::mutex> hold(g->lock);
    i32 answer = known();
    if (answer != kUnknown) return answer;
    try {
        Metered meter(*g);
        return act();
    } catch (const Limit&) {
        return kLimit;
    } catch (const std::exception&) {
        return kFailed;
    }
}

template <class F> i32 guarded(Grammar* g, F&& act) {
    return guarded(g, [] { return kUnknown; }, act);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Vocabulary* ramet_vocabulary(i32 n, const uint8_t* text, const int64_t* offset, i32 n_eos, const i32* eos, uint64_t store_limit) {
    auto* v = new Vocabulary;
    v->text.assign(text, text + offset[n]);
    v->text.push_back(0);
    v->offset.assign(offset, offset + n + 1);
    v->eos.assign(eos, eos + n_eos);
    v->store_limit = store_limit;
    v->current();
    return v;
}

EXPORT void ramet_vocabulary_free(Vocabulary* v) { delete v; }

EXPORT i32 ramet_grammar(Vocabulary* v, const i32* code, int64_t n, i32 whole, uint64_t byte_limit, double seconds, Grammar** out, char* error, int64_t room) {
    auto store = v->current();
    try {
        auto g = std::make_unique<Grammar>(store, v->eos, Limits{byte_limit, seconds});
        {
            Metered meter(*g);
            g->load(code, size_t(n), whole);
        }
        *out = g.release();
        return 0;
    } catch (const Limit& e) {
        say(error, size_t(room), e.what());
        return kLimit;
    } catch (const Invalid& e) {
        say(error, size_t(room), e.what());
        return kInvalid;
    } catch (const std::exception& e) {
        say(error, size_t(room), e.what());
        return kFailed;
    }
}

EXPORT void ramet_grammar_free(Grammar* g) {
    delete g;  // the last one of its store frees that too
}

EXPORT i32 ramet_start(Grammar* g) { return g->start(); }

EXPORT i32 ramet_advance(Grammar* g, i32 s, i32 id) {
    auto known = [&] {
        i32 to = g->known_advance(s, id);
        return to == -2 ? kUnknown : to;
    };
    return guarded(g, known, [&] { return g->advance(s, id); });
}

EXPORT i32 ramet_advance_bytes(Grammar* g, i32 s, const uint8_t* text, int64_t n) {
    return guarded(g, [&] {
        i32 at = s;
        for (int64_t i = 0; i < n && at >= 0; i++) at = g->step(at, text[i]);
        return at;
    });
}

EXPORT i32 ramet_fill(Grammar* g, i32 s, u32* row, i32 budget) {
    auto fill = [&] {
        g->fill(s, row, budget);
        return 0;
    };
    return guarded(g, [&] { return g->known_fill(s, budget) ? fill() : kUnknown; }, fill);
}

EXPORT i32 ramet_flags(Grammar* g, i32 s) {  // 1: accepting, 2: finished
    std::lock_guard<std::mutex> hold(g->lock);
    return (g->accepting(s) ? 1 : 0) | (g->finished(s) ? 2 : 0);
}

EXPORT i32 ramet_forced(Grammar* g, i32 s, char* out, i32 most) {
    return guarded(g, [&] {
        std::string text = g->forced(s, size_t(most));
        std::memcpy(out, text.data(), text.size());
        return i32(text.size());
    });
}

EXPORT i32 ramet_need(Grammar* g, i32 s) {  // tokens; 2^30: not known
    return guarded(g, [&] { return i32(g->need(s)); });
}

EXPORT i32 ramet_live_bytes(Grammar* g, i32 s, uint8_t* out) {  // out: 256 flags
    return guarded(g, [&] {
        i32 n = 0;
        for (int b = 0; b < 256; b++) n += out[b] = g->step(s, uint8_t(b)) >= 0;
        return n;
    });
}

EXPORT void ramet_sizes(Grammar* g, uint64_t* out) {  // states, bytes of the grammar, bytes of its store
    std::lock_guard<std::mutex> hold(g->lock);
    out[0] = g->size(), out[1] = g->bytes(), out[2] = g->store().held();
}
