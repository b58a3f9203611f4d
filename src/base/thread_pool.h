// One persistent pool of threads. In a run every worker executes the same function, which may contain many
// parallel loops: items are claimed one by one, so slow cores do not hold up fast ones, and each loop ends in
// a barrier. Waiting threads spin for a while and then park, so an idle pool costs nothing.
//
// The thread that calls run() is worker 0. run() is not reentrant and is called from one thread at a time.
#pragma once

#include <atomic>
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
  Worker alone() const {
    Worker w(pool_, index_, 1);
    w.is_alone_ = true;
    return w;
  }

  // Calls fn(i) once for every i in [0, n_items), on any worker, then waits at a barrier. All workers must
  // call it with the same n_items.
  template <class Fn>
  void for_each(int64_t n_items, Fn&& fn) {
    for (int64_t i = claim(); i < n_items; i = claim()) fn(i);
    barrier();
  }

 private:
  friend class ThreadPool;
  Worker(ThreadPool& pool, int index, int count) : pool_(pool), index_(index), count_(count) {}
  int64_t claim();

  ThreadPool& pool_;
  int index_;
  int count_;
  bool is_alone_ = false;
  int64_t own_next_ = 0;  // item, of one that is alone
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
  void worker_main(int index);
  void join();

  int n_threads_;
  const bool oversubscribed_;  // many more threads than processors
  std::vector<std::thread> threads_;

  // Words that workers spin on, one cache line each.
  alignas(64) std::atomic<uint32_t> epoch_{0};     // run number and its number of workers
  alignas(64) std::atomic<uint32_t> phase_{0};     // counts barriers
  alignas(64) std::atomic<int32_t> arrived_{0};    // workers at the current barrier
  alignas(64) std::atomic<int64_t> next_item_{0};  // next unclaimed item of the current loop
  alignas(64) std::atomic<bool> stop_{false};
  Entry entry_ = nullptr;
  void* fn_ = nullptr;
  int n_active_ = 0;
};

inline int64_t Worker::claim() {
  if (is_alone_) return own_next_++;
  return pool_.next_item_.fetch_add(1, std::memory_order_relaxed);
}

// Returns the physical cores that this process may run on (hyper-threads counted once), at least 1.
int physical_core_count();

}  // namespace tandem
