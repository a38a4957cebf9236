// A grammar's automaton: rules, stacks of what is still to come, and states made when first visited.
//
// A state is a set of (term state, stack) pairs: the term that is being written, and an interned stack of what follows it. Rules
// recurse by stack, repeats count in stack frames. Terms live in the Store, shared by all grammars; stacks and states are the grammar's.
#pragma once
#include "bytes.h"

namespace ramet {

enum class G : uint8_t { Term, Seq, Alt, Rep, Ref, Pick };

struct Rule {           // a node of the grammar
    G op = G::Term;
    bool nullable = false;
    std::vector<i32> kids;
    i32 lo = 0, hi = 0;
    i32 term = 0;       // of a Term
    i32 required = 0;   // of a Pick
    u32 dist = kFar;    // fewest bytes it matches; kFar: none at all
};

struct Frame { i32 rule, a, b, below, c = -1; };  // Seq: a = next kid. Rep: a..b times still. Pick: see pick.cpp. below: the stack under it; 0 is the end

struct Used {             // items of a Pick that are used up
    std::vector<u64> bits;
    i32 left;      // required ones that are not
    i32 distinct;  // different members so far; all extras are one
    u64 least;     // fewest bytes of the required ones left
};

struct Config {
    i32 term, stack;
    bool operator<(const Config& o) const { return term != o.term ? term < o.term : stack < o.stack; }
    bool operator==(const Config& o) const { return term == o.term && stack == o.stack; }
};

struct Set {
    std::vector<Config> configs;  // sorted
    bool accept = false;
};

struct Mask {
    bool sparse = false;
    std::vector<u32> data;  // sparse: ids; else one bit an id
};

struct State {
    Set set;
    std::vector<std::pair<uint8_t, i32>> few;  // byte -> state, -1 dead: those tried
    std::unique_ptr<i32[]> table;              // the same when they are many; -2 not tried
    std::unique_ptr<Mask> mask;
    std::unique_ptr<std::vector<uint16_t>> needs;  // what each allowed id leaves to be written, once a budget asked
    i32 canon = -1;
    bool looked = false;  // live is known
    ByteSet live;
    int16_t way = -2;  // the first byte of a shortest way to acceptance; -2: not known yet
    u32 dist = kFar + 1, need = kFar + 1, worst = kFar + 1;
};

struct Limits {
    u64 bytes;       // of the grammar, and of what its calls add to the store
    double seconds;  // of one call
};

class Grammar {
public:
    Grammar(std::shared_ptr<Store> store, std::vector<i32> eos, Limits limits);
    void load(const i32* code, size_t n, bool whole);  // whole: the start is one term, however it is made
    Store& store() { return *store_; }
    std::shared_ptr<Store> shared_store() const { return store_; }
    i32 start() const { return start_; }
    u64 size() const { return states_.size(); }
    u64 bytes() const { return bytes_; }

    i32 step(i32 s, uint8_t b);            // the state after a byte, -1 dead
    i32 advance(i32 s, i32 id);
    i32 known_advance(i32 s, i32 id) const;  // -2: not all of the way is known
    bool known_fill(i32 s, i32 budget) const {  // the row can be filled from what is known
        const State& t = states_[s];
        return t.canon >= 0 && states_[t.canon].mask && (budget < 0 || (t.need <= kFar && t.worst <= kFar && u32(budget) > t.worst));
    }
    std::mutex lock;  // of this grammar's states; taken before the store's
    bool accepting(i32 s) const { return states_[s].set.accept; }
    bool finished(i32 s) const { return accepting(s) && states_[s].set.configs.empty(); }
    void fill(i32 s, u32* row, i32 budget);  // budget < 0: none
    std::string forced(i32 s, size_t most);
    u32 need(i32 s);                       // ids that suffice to finish, the one that ends it included; kFar: not known

private:
    std::shared_ptr<Store> store_;
    std::vector<i32> eos_;
    const Limits limits_;
    u64 bytes_ = 0;
    friend struct Metered;
    std::vector<Rule> rules_;
    i32 start_ = -1;
    bool bytewise_ = true;  // shortest texts can be written byte by byte, so that a distance in bytes bounds one in tokens
    std::vector<Frame> frames_;
    std::vector<u32> frame_dist_;
    Index frame_index_, state_index_;
    std::vector<std::unique_ptr<Set>> closures_;
    std::vector<i32> closure_states_, canon_stacks_;
    std::deque<State> states_;
    std::unordered_set<i32> resumed_;
    std::deque<Used> used_;
    std::map<std::pair<i32, std::vector<u64>>, i32> used_index_;

    void decode(const i32* code, size_t n, bool whole);
    void measure();
    void refuse_left_recursion();
    i32 push(i32 rule, i32 a, i32 b, i32 below, i32 c = -1);
    void enter(i32 rule, i32 stack, Set& out);
    void resume(i32 stack, Set& out);
    i32 used_set(i32 rule, Used used);
    i32 used_too(i32 rule, i32 used, i32 item);
    Used no_use(const Rule& r);
    Used counted(const Rule& r, const Used& used, i32 member);
    u64 pick_dist(const Rule& r, const Used& used, i32 count, bool separated);
    u64 pick_dist(const Rule& r);
    u64 pick_dist(const Frame& f);
    bool may_pick(const Rule& r, const Used& used, i32 member, i32 count);
    void pick_member(i32 rule, i32 used, i32 count, i32 below, Set& out);
    void resume_pick(const Frame& f, Set& out);
    const Set& closure(i32 stack);
    i32 closure_state(i32 stack);
    i32 intern(Set set);
    const ByteSet& live(i32 s);
    u32 dist(i32 s);
    i32 shortest_byte(i32 s);
    i32 canon(i32 s);
    const Mask& mask(i32 s);
    template <class F> void walk(i32 n, i32 s, F&& found);
    template <class F> void each_child(i32 n, i32 s, F&& visit);
    template <class F> bool leave(const Config& c, F&& found);
    i32 canon_stack(i32 stack, i32 height);
    u32 worst(i32 s);
    const std::vector<uint16_t>& needs(i32 s);
    void hold(u64 more);
};

// For the length of one call: the store's lock, the call's limits, and the store's growth charged to the grammar that caused it.
struct Metered {
    Grammar& g;
    u64 before;
    explicit Metered(Grammar& grammar);
    ~Metered();
};

}  // namespace ramet
