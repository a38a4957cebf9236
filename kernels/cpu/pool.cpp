#include "pool.h"

#include <algorithm>

namespace ramet {

namespace {

inline void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr int SPINS = 4000;                                 // about 50 microseconds: longer than any gap inside a pass
constexpr auto PATIENCE = std::chrono::microseconds(200);  // how long a waiter gives way before it sleeps

}  // namespace

Pool::Pool(int threads) : active_(threads) {
  for (int i = 1; i < threads; i++) workers_.emplace_back([this, i] { serve(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(sleep_);
    closing_ = true;
  }
  wake_.notify_all(), unpark_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Takes one piece of the current job and does it; false when none is left to take.
bool Pool::take(int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    Job& job = jobs_[(ticket >> 32) % RING];
    int piece = (int)(uint32_t)ticket;
    if (piece >= job.pieces.load(std::memory_order_relaxed)) return false;
    // Success means that the job is still this one, and it stays so until the piece is done.
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
      job.call.load(std::memory_order_relaxed)(job.context.load(std::memory_order_relaxed), piece, thread);
      left_.fetch_sub(1, std::memory_order_acq_rel);
      return true;
    }
  }
}

void Pool::dispatch(Call call, void* context, int pieces) {
  Job& job = jobs_[++number_ % RING];
  job.call.store(call, std::memory_order_relaxed);
  job.context.store(context, std::memory_order_relaxed);
  job.pieces.store(pieces, std::memory_order_relaxed);
  left_.store(pieces, std::memory_order_relaxed);
  ticket_.store((uint64_t)number_ << 32, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst)) {
    std::lock_guard<std::mutex> lock(sleep_);
    wake_.notify_all();
  }
  while (take(0)) {
  }
  if (!left_.load(std::memory_order_acquire)) return;
  auto begin = Clock::now();
  for (int spins = 0; left_.load(std::memory_order_acquire); spins++) {
    if (spins < SPINS) pause_briefly();
    else std::this_thread::yield();
  }
  waited_ += Clock::now() - begin;
}

void Pool::serve(int thread) {
  while (!closing_) {
    uint64_t seen = ticket_.load(std::memory_order_acquire) >> 32;  // before the last look, so that no job is overlooked
    while (thread < active() && take(thread)) {
    }
    auto changed = [&] { return closing_ || ticket_.load(std::memory_order_seq_cst) >> 32 != seen; };
    if (thread < active()) {
      for (int spins = 0; spins < SPINS && !changed(); spins++) pause_briefly();
      for (auto end = Clock::now() + PATIENCE; !changed() && Clock::now() < end;) std::this_thread::yield();
      if (changed()) continue;
    }
    sleep_until_needed(thread, seen);
  }
}

// Until there is another job than `seen`, for a thread that takes part; for one that does not, until it does.
void Pool::sleep_until_needed(int thread, uint64_t seen) {
  std::unique_lock<std::mutex> lock(sleep_);
  if (thread >= active()) {
    unpark_.wait(lock, [&] { return closing_ || thread < active(); });
    return;
  }
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  wake_.wait(lock, [&] { return closing_ || ticket_.load(std::memory_order_seq_cst) >> 32 != seen; });
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

// Two passes in a row that spent much of their time waiting: half of the threads stay away, for longer each time.
void Pool::adapt(Clock::duration elapsed) {
  constexpr Clock::duration FIRST = std::chrono::milliseconds(100), LONGEST = std::chrono::milliseconds(1600);
  auto time = Clock::now();
  int all = threads(), now = active(), wanted = now;
  bool telling = elapsed > std::chrono::milliseconds(1);  // shorter passes are ruled by accident
  if (now > 1 && telling) {
    bad_ = waited_ > elapsed * 2 / 5 ? bad_ + 1 : 0;
    if (bad_ >= 2) wanted = now / 2, bad_ = 0, rest_ = std::clamp(rest_ * 2, FIRST, LONGEST), retry_ = time + rest_;
    else if (now == all && !bad_) rest_ = {};
  }
  if (wanted == now && now < all && time > retry_) wanted = all;
  if (wanted == now) return;
  std::lock_guard<std::mutex> lock(sleep_);
  active_ = wanted;
  unpark_.notify_all();
}

}  // namespace ramet
