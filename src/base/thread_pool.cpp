#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/numa.h"

namespace tandem {
namespace {

constexpr int kActiveBits = 12;
constexpr int kMaxThreads = 512;
constexpr size_t kMaxThreadsPerCpu = 4;  // with more threads than this per processor, waiting does not spin
static_assert(kMaxThreads < 1 << kActiveBits);
constexpr int kGroup = 8;       // workers that arrive at a barrier together
constexpr int kMaxVictims = 8;  // workers from which one takes items
// Of spinning: how long, and after how many pauses, tens of microseconds, one asks whether it is in another's way.
constexpr int kPauses = 4000, kPausesToAsk = 500;
constexpr auto kStay = std::chrono::milliseconds(1);  // at least, on a processor that a worker has moved to

// ThreadPool::State::left.
struct Left {
  uint32_t loop, next, end;

  static constexpr int kItemBits = 20;  // and 24 for the loop
  static constexpr int64_t kMaxItems = (int64_t{1} << kItemBits) - 1;
  // Numbers begin anew before a run when there were so many; a run has a few thousand more.
  static constexpr uint32_t kManyLoops = 1u << 16;

  static Left unpack(uint64_t word) {
    return {static_cast<uint32_t>(word >> (2 * kItemBits)),
            static_cast<uint32_t>(word >> kItemBits & kMaxItems), static_cast<uint32_t>(word & kMaxItems)};
  }
  uint64_t pack() const { return uint64_t{loop} << (2 * kItemBits) | uint64_t{next} << kItemBits | end; }
};

// Waits until `word` differs from `seen`: spins, yields, then parks in the kernel. A barrier inside a run is
// short, so spinning pays; with more threads than cores, yielding lets the others run. With many more
// threads than cores a waiting thread only gets in the way, so it parks at once. Calls make_way() now and then while it spins.
template <class MakeWay>
void wait_while_equal(std::atomic<uint32_t>& word, uint32_t seen, bool oversubscribed, MakeWay make_way) {
  for (int i = 1; i <= kPauses && !oversubscribed; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    __builtin_ia32_pause();
    if (i % kPausesToAsk == 0) make_way();
  }
  for (int i = 0; i < 50 && !oversubscribed; ++i) {
    if (word.load(std::memory_order_acquire) != seen) return;
    sched_yield();
  }
  while (word.load(std::memory_order_acquire) == seen) word.wait(seen, std::memory_order_acquire);
}

}  // namespace

void Worker::barrier() {
  if (count_ == 1) return;
  const uint32_t phase = pool_.phase_.load(std::memory_order_acquire);
  pool_.note_cpu(index_);
  const int group = index_ / kGroup, n_groups = (count_ + kGroup - 1) / kGroup;
  const int group_size = std::min(kGroup, count_ - group * kGroup);
  std::atomic<int32_t>& arrived = pool_.arrived_[static_cast<size_t>(group)].n;
  bool is_last = arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == group_size;
  if (is_last) {
    arrived.store(0, std::memory_order_relaxed);
    is_last = pool_.arrived_groups_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_groups;
  }
  if (is_last) {
    pool_.arrived_groups_.store(0, std::memory_order_relaxed);
    pool_.phase_.fetch_add(1, std::memory_order_release);
    pool_.phase_.notify_all();
  } else {
    wait_while_equal(pool_.phase_, phase, pool_.oversubscribed_, [&] { pool_.make_way(index_, count_); });
  }
}

int64_t Worker::begin_loop(int64_t n_items) {
  const int64_t most = Left::kMaxItems * count_, grain = n_items <= most ? 1 : (n_items + most - 1) / most;
  ++loop_;
  n_items_ = (n_items + grain - 1) / grain;
  victim_ = 0;
  return grain;
}

int64_t Worker::claim() {
  // All others of a few workers; of many those next to this one, for looking at all takes longer than it saves.
  const int n_victims = std::min(count_ - 1, kMaxVictims);
  for (; victim_ <= n_victims; ++victim_) {
    const int worker = (index_ + victim_) % count_;
    const int64_t item = claim_from(worker);
    if (item < 0) continue;
    if (victim_ > 0) {
      pool_.states_[static_cast<size_t>(index_)].n_stolen.fetch_add(1, std::memory_order_relaxed);
    }
    return item;
  }
  return -1;
}

// The owner takes its first items, others its last ones.
int64_t Worker::claim_from(int worker) {
  const int64_t each = n_items_ / count_, rest = n_items_ % count_;
  const int64_t first = worker * each + std::min<int64_t>(worker, rest);
  const int64_t n = each + (worker < rest ? 1 : 0);
  if (n == 0) return -1;
  std::atomic<uint64_t>& word = pool_.states_[static_cast<size_t>(worker)].left;
  uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    Left left = Left::unpack(seen);
    if (left.loop != loop_) left = {loop_, 0, static_cast<uint32_t>(n)};
    if (left.next == left.end) return -1;
    const uint32_t item = worker == index_ ? left.next++ : --left.end;
    // Relaxed: barriers order what items read and write.
    if (word.compare_exchange_weak(seen, left.pack(), std::memory_order_relaxed)) return first + item;
    pool_.states_[static_cast<size_t>(index_)].n_retried.fetch_add(1, std::memory_order_relaxed);
  }
}

ThreadPool::ThreadPool(int n_threads)
    : n_threads_(std::clamp(n_threads, 1, kMaxThreads)),
      oversubscribed_(static_cast<size_t>(n_threads_) > kMaxThreadsPerCpu * process_cpus().size()),
      states_(static_cast<size_t>(n_threads_)),
      arrived_(static_cast<size_t>((n_threads_ + kGroup - 1) / kGroup)) {
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
  begin_numbering();
  Worker self(*this, 0, n_active_, first_loop_);
  if (n_active_ > 1) {
    note_cpu(0);
    // The epoch itself holds the number of active workers: a worker that wakes late and is not part of this
    // run must not read the number of a later one.
    const uint32_t run = (epoch_.load(std::memory_order_relaxed) >> kActiveBits) + 1;
    epoch_.store(run << kActiveBits | static_cast<uint32_t>(n_active_), std::memory_order_release);
    epoch_.notify_all();
  }
  entry(fn, self);
  self.barrier();  // after this no worker uses fn
  end_loop_ = self.loop_;
}

// Loops go on being numbered from run to run. Before numbers repeat, the words of all workers are made new.
void ThreadPool::begin_numbering() {
  first_loop_ = end_loop_;
  if (first_loop_ < Left::kManyLoops) return;
  for (State& state : states_) state.left.store(0, std::memory_order_relaxed);
  first_loop_ = 0;
}

void ThreadPool::note_cpu(int index) {
  std::atomic<int>& noted = states_[static_cast<size_t>(index)].cpu;
  const int cpu = sched_getcpu();
  if (noted.load(std::memory_order_relaxed) != cpu) noted.store(cpu, std::memory_order_relaxed);
}

// For a worker of `count` that waits. Where it shares a processor with one that it may be waiting for, that one does not run
// as long as this one spins, and the system takes tens of milliseconds to part them: it moves to a processor that none of
// them is on, or where there is none lets the other run. So it does, too, as long as some have not begun: they may have been
// woken on its own.
void ThreadPool::make_way(int index, int count) {
  const auto cpu_of = [&](int worker) {
    return states_[static_cast<size_t>(worker)].cpu.load(std::memory_order_relaxed);
  };
  const int cpu = sched_getcpu();
  bool is_shared = false, may_be_shared = false;
  for (int i = 0; i < count; ++i) {
    if (i == index) continue;
    is_shared |= cpu_of(i) == cpu;
    may_be_shared |= cpu_of(i) < 0;
  }
  if (!is_shared && !may_be_shared) return;
  State& self = states_[static_cast<size_t>(index)];
  const auto now = std::chrono::steady_clock::now();
  if (is_shared && now - self.moved_at >= kStay) {
    self.moved_at = now;
    std::array<int, kMaxThreads> taken;  // a worker has nobody to tell that memory is short
    for (int i = 0; i < count; ++i) taken[static_cast<size_t>(i)] = i == index ? cpu : cpu_of(i);
    if (move_thread_off(std::span(taken).first(static_cast<size_t>(count)))) {
      self.n_moved.fetch_add(1, std::memory_order_relaxed);
      note_cpu(index);
      return;
    }
  }
  sched_yield();
}

uint64_t ThreadPool::n_stolen() const {
  uint64_t n = 0;
  for (const State& state : states_) n += state.n_stolen.load(std::memory_order_relaxed);
  return n;
}

uint64_t ThreadPool::n_retried() const {
  uint64_t n = 0;
  for (const State& state : states_) n += state.n_retried.load(std::memory_order_relaxed);
  return n;
}

uint64_t ThreadPool::n_moved() const {
  uint64_t n = 0;
  for (const State& state : states_) n += state.n_moved.load(std::memory_order_relaxed);
  return n;
}

void ThreadPool::worker_main(int index) {
  uint32_t seen = 0;
  for (;;) {
    wait_while_equal(epoch_, seen, oversubscribed_, [] {});
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_) return;
    const int n_active = static_cast<int>(seen & ((1u << kActiveBits) - 1));
    if (index >= n_active) continue;
    Worker self(*this, index, n_active, first_loop_);
    note_cpu(index);
    entry_(fn_, self);
    self.barrier();
    states_[static_cast<size_t>(index)].cpu.store(-1, std::memory_order_relaxed);
  }
}

int physical_core_count() {
  std::set<std::pair<int, int>> cores;  // (package, core)
  for (const int cpu : process_cpus()) {
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
