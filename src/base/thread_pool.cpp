#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <system_error>

#include "base/error.h"

namespace tandem {
namespace {

constexpr int kActiveBits = 12;
constexpr int kMaxThreads = 512;
constexpr unsigned kMaxThreadsPerCpu = 4;  // with more threads than this per processor, waiting does not spin
static_assert(kMaxThreads < 1 << kActiveBits);

// Waits until `word` differs from `seen`: spins, yields, then parks in the kernel. A barrier inside a run is
// short, so spinning pays; with more threads than cores, yielding lets the others run. With many more
// threads than cores a waiting thread only gets in the way, so it parks at once.
void wait_while_equal(std::atomic<uint32_t>& word, uint32_t seen, bool oversubscribed) {
  for (int i = 0; i < 4000 && !oversubscribed; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    __builtin_ia32_pause();
  }
  for (int i = 0; i < 50 && !oversubscribed; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    sched_yield();
  }
  while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

}  // namespace

void Worker::barrier() {
  own_next_ = 0;
  if (is_alone_) return;
  if (count_ == 1) {
    pool_.next_item_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t phase = pool_.phase_.load(std::memory_order_acquire);
  if (pool_.arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    pool_.arrived_.store(0, std::memory_order_relaxed);
    pool_.next_item_.store(0, std::memory_order_relaxed);
    pool_.phase_.fetch_add(1, std::memory_order_release);
    pool_.phase_.notify_all();
  } else {
    wait_while_equal(pool_.phase_, phase, pool_.oversubscribed_);
  }
}

ThreadPool::ThreadPool(int n_threads)
    : n_threads_(std::clamp(n_threads, 1, kMaxThreads)),
      oversubscribed_(static_cast<unsigned>(n_threads_) >
                      kMaxThreadsPerCpu * std::max(1u, std::thread::hardware_concurrency())) {
  try {
    for (int i = 1; i < n_threads_; ++i) threads_.emplace_back(&ThreadPool::worker_main, this, i);
  } catch (const std::system_error& e) {
    join();
    throw_error(ErrorCode::out_of_memory, "cannot start {} threads: {}", n_threads_, e.what());
  } catch (...) {  // no memory for a thread's state
    join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  join();
}

void ThreadPool::join() {
  stop_ = true;
  epoch_.fetch_add(1u << kActiveBits, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::run_erased(Entry entry, void* fn, int n_active) {
  n_active_ = n_active <= 0 || n_active > n_threads_ ? n_threads_ : n_active;
  entry_ = entry;
  fn_ = fn;
  Worker self(*this, 0, n_active_);
  if (n_active_ > 1) {
    // The epoch itself holds the number of active workers: a worker that wakes late and is not part of this
    // run must not read the number of a later one.
    const uint32_t run = (epoch_.load(std::memory_order_relaxed) >> kActiveBits) + 1;
    epoch_.store(run << kActiveBits | static_cast<uint32_t>(n_active_), std::memory_order_release);
    epoch_.notify_all();
  }
  entry(fn, self);
  self.barrier();  // after this no worker uses fn
}

void ThreadPool::worker_main(int index) {
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(epoch_, seen, oversubscribed_);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    const int n_active = static_cast<int>(seen & ((1u << kActiveBits) - 1));
    if (index >= n_active) continue;
    Worker self(*this, index, n_active);
    entry_(fn_, self);
    self.barrier();
  }
}

int physical_core_count() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::pair<int, int>> cores;  // (package, core)
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    int ids[2] = {0, cpu};
    const char* names[2] = {"physical_package_id", "core_id"};
    for (int i = 0; i < 2; ++i) {
      char path[128];
      snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, names[i]);
      if (FILE* f = fopen(path, "r")) {
        if (fscanf(f, "%d", &ids[i]) != 1) ids[i] = i == 0 ? 0 : cpu;
        fclose(f);
      }
    }
    cores.insert({ids[0], ids[1]});
  }
  return cores.empty() ? 1 : static_cast<int>(cores.size());
}

}  // namespace tandem
