// A team of threads that shares out the pieces of one job after another.
//
// A job is over when its pieces are done, not when every thread has come by: a thread that the system took off its core
// between two pieces holds nobody up, and the others take its share. One that is taken off in the middle of a piece does hold
// the job up; where that happens pass after pass, because other processes want the cores, fewer threads take part for a while.
// Threads wait for the next job by spinning for a short time (jobs of one pass follow each other within microseconds) and then
// sleep, so that an idle engine uses no processor. The caller works too; a pool of one thread, or one whose threads did not
// survive a fork, runs everything in the caller.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace ramet {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  int threads() const { return (int)workers_.size() + 1; }
  int active() const { return active_.load(std::memory_order_relaxed); }  // threads that take part now

  // Whoever runs jobs holds a turn: one pass at a time. Its end decides how many threads the next pass gets.
  class Turn {
   public:
    explicit Turn(Pool& pool) : pool_(pool), lock_(pool.one_pass_), begin_(std::chrono::steady_clock::now()) { pool_.waited_ = {}; }
    ~Turn() { pool_.adapt(std::chrono::steady_clock::now() - begin_); }

   private:
    Pool& pool_;
    std::lock_guard<std::mutex> lock_;
    std::chrono::steady_clock::time_point begin_;
  };

  // Calls work(piece, thread) once for every piece of 0..pieces-1, and returns when all have returned.
  template <class Work> void run(int pieces, Work&& work) {
    auto call = [](void* context, int piece, int thread) { (*(std::remove_reference_t<Work>*)context)(piece, thread); };
    if (pieces <= 1 || active() == 1) {
      for (int i = 0; i < pieces; i++) work(i, 0);
    } else {
      dispatch(call, (void*)&work, pieces);
    }
  }

  // Calls work(begin, end, thread) over 0..count in pieces of about `grain`.
  template <class Work> void run_ranges(int count, int grain, Work&& work) {
    run((count + grain - 1) / grain, [&](int piece, int thread) {
      int begin = piece * grain, end = begin + grain < count ? begin + grain : count;
      work(begin, end, thread);
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  using Call = void (*)(void*, int, int);
  struct Job {  // written before its ticket is shown; reused only RING jobs later
    std::atomic<Call> call{nullptr};
    std::atomic<void*> context{nullptr};
    std::atomic<int> pieces{0};
  };
  static constexpr int RING = 64;

  void dispatch(Call call, void* context, int pieces);
  bool take(int thread);
  void serve(int thread);
  void sleep_until_needed(int thread, uint64_t seen);
  void adapt(Clock::duration elapsed);

  alignas(64) std::atomic<uint64_t> ticket_{0};  // number of the job << 32 | next piece
  alignas(64) std::atomic<int> left_{0};         // pieces of the current job that are not done
  alignas(64) std::atomic<int> sleepers_{0};
  std::atomic<bool> closing_{false};
  std::atomic<int> active_;
  Job jobs_[RING];
  uint32_t number_ = 0;
  std::mutex sleep_, one_pass_;
  std::condition_variable wake_, unpark_;
  Clock::duration waited_{};       // of this turn: for pieces of others, with nothing left to take
  int bad_ = 0;                    // passes in a row that waited too much
  Clock::duration rest_{};         // how long threads stay away now; doubled each time
  Clock::time_point retry_{};      // when all are tried again
  std::vector<std::thread> workers_;
};

}  // namespace ramet
