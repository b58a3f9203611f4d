// One persistent pool of threads. In a run every worker executes the same function, which may contain many
// parallel loops, each of which ends in a barrier. A loop's items are divided evenly, the same way every time, so a core
// finds in its caches what it had in the step before; a worker that is done takes items from others, so slow cores do not
// hold up fast ones. Waiting threads spin for a while and then park, so an idle pool costs nothing.
//
// The thread that calls run() is worker 0. run() is not reentrant and is called from one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace tandem {

class ThreadPool;

// A worker's view of the current run.
class Worker {
 public:
  int index() const { return index_; }
  int count() const { return count_; }

  // Waits until every worker of the run has called it.
  void barrier();

  // Returns this worker for work that it does without the others: loops have all items, barriers wait for nobody.
  Worker alone() const { return Worker(pool_, index_, 1); }

  // Calls fn(i) once for every i in [0, n_items), on any worker, then waits at a barrier. All workers must
  // call it with the same n_items.
  template <class Fn>
  void for_each(int64_t n_items, Fn&& fn) {
    if (count_ == 1) {
      for (int64_t i = 0; i < n_items; ++i) fn(i);
      return;
    }
    const int64_t grain = begin_loop(n_items);
    for (int64_t begin = claim(); begin >= 0; begin = claim()) {
      const int64_t end = begin * grain + grain < n_items ? begin * grain + grain : n_items;
      for (int64_t i = begin * grain; i < end; ++i) fn(i);
    }
    barrier();
  }

 private:
  friend class ThreadPool;
  Worker(ThreadPool& pool, int index, int count, uint32_t loop = 0)
      : pool_(pool), index_(index), count_(count), loop_(loop) {}
  int64_t begin_loop(int64_t n_items);  // returns how many items are claimed at a time: 1, but of very many
  int64_t claim();                      // -1: none is left
  int64_t claim_from(int worker);

  ThreadPool& pool_;
  int index_;
  int count_;
  uint32_t loop_;        // number of the current loop
  int64_t n_items_ = 0;  // of the loop, or of claims
  int victim_ = 0;       // how many workers on is the one to take items from; 0: this one
};

class ThreadPool {
 public:
  // n_threads >= 1, including the caller; at most 512 are started. Throws Error(out_of_memory) when threads
  // cannot be started.
  explicit ThreadPool(int n_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return n_threads_; }
  // Barriers of several workers since the pool was made, the one at the end of each run included. Wraps around.
  uint32_t n_barriers() const { return phase_.load(std::memory_order_relaxed); }
  // Items that a worker has taken from another since the pool was made.
  uint64_t n_stolen() const;
  // Claims of an item that had to be tried again since the pool was made, as another worker was faster.
  uint64_t n_retried() const;
  // How often a worker has left a processor that it shared with another since the pool was made.
  uint64_t n_moved() const;

  // Runs fn(Worker&) on the first `n_active` workers (0: all) and returns when all are done. fn must not
  // throw.
  template <class Fn>
  void run(Fn&& fn, int n_active = 0) {
    run_erased([](void* f, Worker& w) { (*static_cast<std::remove_reference_t<Fn>*>(f))(w); },
               const_cast<void*>(static_cast<const void*>(std::addressof(fn))), n_active);
  }

 private:
  friend class Worker;
  using Entry = void (*)(void*, Worker&);
  void run_erased(Entry entry, void* fn, int n_active);
  void begin_numbering();
  void note_cpu(int index);
  void make_way(int index, int count);
  void worker_main(int index);
  void join();

  struct alignas(64) State {  // of a worker
    // What is left of its items in a loop, packed into a word: the number of the loop, the next item, the end. A word of
    // an earlier loop stands for all of them.
    std::atomic<uint64_t> left{0};
    std::atomic<uint64_t> n_stolen{0}, n_retried{0}, n_moved{0};  // by this worker
    std::atomic<int> cpu{-1};                        // where it arrived at its last barrier; -1: it is not in a run
    std::chrono::steady_clock::time_point moved_at;  // for this worker alone
  };
  // Workers that arrive at a barrier, up to kGroup of them, and then the groups, so that few share a cache line.
  struct alignas(64) Arrived {
    std::atomic<int32_t> n{0};
  };

  int n_threads_;
  const bool oversubscribed_;  // many more threads than processors
  std::vector<std::thread> threads_;
  std::vector<State> states_;     // [n_threads]
  std::vector<Arrived> arrived_;  // [groups]

  // Words that workers spin on, one cache line each.
  alignas(64) std::atomic<uint32_t> epoch_{0};  // run number and its number of workers
  alignas(64) std::atomic<uint32_t> phase_{0};  // counts barriers
  alignas(64) std::atomic<int32_t> arrived_groups_{0};
  alignas(64) std::atomic<bool> stop_{false};
  Entry entry_ = nullptr;
  void* fn_ = nullptr;
  int n_active_ = 0;
  uint32_t first_loop_ = 0;  // the number before those of the run
  uint32_t end_loop_ = 0;    // the last one of the run before
};

// Returns the physical cores that this process may run on (hyper-threads counted once), at least 1.
int physical_core_count();

}  // namespace tandem
