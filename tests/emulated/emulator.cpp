// Blocks and their threads: fibers that switch where threads wait.
#include "emulated/emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <numeric>
#include <vector>

#include "emulated/threads.h"

namespace emulator {

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kSharedBytes = 228 << 10;

alignas(1024) std::byte shared_memory[kSharedBytes];

enum class State { ready, at_warp, at_block, at_grid, at_previous, done };

// Where a context goes on: the compiler's own, which save no signal masks and look at no frames. The function that jumps must be
// another than the one that set it.
using Jump = void* [5];
#define NOINLINE __attribute__((noinline))

// A stack, on which threads of kernels run one after the other: each leaves it where the next begins, for making a context takes
// system calls.
struct Stack {
  Jump next;
  bool is_used = false;
  std::byte* bytes = nullptr;
};
using StackSet = std::vector<Stack>;

struct Fiber {
  Jump resume;
  Stack* stack = nullptr;
  bool started = false;
  State state = State::ready;
  dim3 index;
  int number = 0;  // in the block
  uint64_t n_exchanges = 0;
  bool has_waited = false;  // for the kernel before
  AsyncCopies copies;
  WarpgroupProducts products;
};

struct Warp {
  Words words[2][32];  // of this exchange and the one before
};

std::vector<Fiber> fibers(kMaxThreads);
std::vector<Warp> warps(kMaxThreads / 32);
std::vector<StackSet>
    stacks;  // of a block's threads, a set for each block that waits for the grid and for the one that runs
Jump scheduler;
Fiber* current = nullptr;
const std::function<void()>* body = nullptr;
unsigned n_threads = 0;
uint32_t order_seed = 1;
struct Variable {
  void* at;
  size_t n_bytes;
};
std::vector<Variable> poisoned;  // shared variables of this block
size_t shared_bytes = 0, max_shared_bytes = 0;
bool begins_early = false;  // the kernel
bool waits = false;         // the block's threads, at their waits

NOINLINE void enter() {
  for (;;) {
    (*body)();
    if (begins_early && !current->has_waited)
      fail("a thread ends before it has waited for the kernel before");
    current->state = State::done;
    if (!__builtin_setjmp(current->stack->next)) __builtin_longjmp(scheduler, 1);
  }
}

NOINLINE void resume(Fiber& fiber) {
  current = &fiber;
  now.thread = fiber.index;
  if (__builtin_setjmp(scheduler)) return;
  if (fiber.started) __builtin_longjmp(fiber.resume, 1);
  fiber.started = true;
  Stack& stack = *fiber.stack;
  if (stack.is_used) __builtin_longjmp(stack.next, 1);
  stack.is_used = true;
  static ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = stack.bytes;
  start.uc_stack.ss_size = kStackBytes;
  start.uc_link = nullptr;
  makecontext(&start, enter, 0);
  setcontext(&start);
}

NOINLINE void wait(State state) {
  current->state = state;
  if (!__builtin_setjmp(current->resume)) __builtin_longjmp(scheduler, 1);
}

void prepare_fibers(dim3 block, size_t set) {
  if (set == stacks.size()) {
    void* const memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for stacks");
    stacks.emplace_back(kMaxThreads);
    for (unsigned i = 0; i < kMaxThreads; ++i)
      stacks[set][i].bytes = static_cast<std::byte*>(memory) + kStackBytes * i;
  }
  n_threads = block.x * block.y * block.z;
  for (unsigned i = 0; i < n_threads; ++i) {
    Fiber& fiber = fibers[i];
    fiber.stack = &stacks[set][i];
    fiber.started = false;
    fiber.state = State::ready;
    fiber.index = dim3(i % block.x, i / block.x % block.y, i / (block.x * block.y));
    fiber.number = static_cast<int>(i);
    fiber.n_exchanges = 0;
    fiber.has_waited = false;
    fiber.copies = {};
    fiber.products = {};
  }
}

// Runs the ready fibers of first .. end - 1, in varying order.
void run_ready(unsigned first, unsigned end) {
  const unsigned count = end - first, from = draw() % count, step = draw() & 1 ? 1 : count - 1;
  for (unsigned i = 0, at = from; i < count; ++i, at = (at + step) % count) {
    if (fibers[first + at].state == State::ready) resume(fibers[first + at]);
  }
}

// Continues a warp whose lanes have all reached the same point. Returns false if they wait for the block or
// have ended.
bool release_warp(unsigned first, unsigned end) {
  unsigned n_waiting = 0, n_done = 0;
  for (unsigned i = first; i < end; ++i) {
    if (fibers[i].state == State::at_previous) return false;
    n_waiting += fibers[i].state == State::at_warp;
    n_done += fibers[i].state == State::done;
  }
  if (n_waiting == 0) return false;
  if (n_waiting + n_done < end - first) fail("lanes of a warp wait for each other at different points");
  if (n_done > 0) fail("a warp waits for a lane that has ended");
  for (unsigned i = first; i < end; ++i) fibers[i].state = State::ready;
  return true;
}

// Runs every warp up to the block's next barrier: one warp at a time, or in lockstep.
void run_warps() {
  const unsigned n_warps = (n_threads + 31) / 32, from = draw() % n_warps;
  const bool in_step = draw() & 1;
  bool again = true;
  while (again) {
    again = false;
    for (unsigned i = 0; i < n_warps; ++i) {
      const unsigned first = (from + i) % n_warps * 32, end = std::min(first + 32, n_threads);
      do {
        run_ready(first, end);
      } while (release_warp(first, end) && (!in_step || (again = true, false)));
    }
  }
}

// Continues all threads in a state of waiting.
bool release(State state) {
  bool released = false;
  for (unsigned i = 0; i < n_threads; ++i) {
    if (fibers[i].state != state) continue;
    fibers[i].state = State::ready;
    released = true;
  }
  return released;
}

// A block that waits for the others of its grid.
struct Suspended {
  dim3 index;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Variable> poisoned;
  std::vector<std::byte> memory;  // its shared memory: the dynamic part, then each variable
  size_t shared_bytes;
};

size_t dynamic_bytes(const Shape& shape) {
  return std::min(kSharedBytes, shape.shared_bytes + 64);
}

void suspend(const Shape& shape, Suspended& block) {
  block.index = now.block;
  block.shared_bytes = shared_bytes;
  block.fibers.resize(kMaxThreads);
  block.warps.resize(kMaxThreads / 32);
  block.fibers.swap(fibers);  // the fibers stay where they are in memory
  block.warps.swap(warps);
  block.poisoned = poisoned;
  block.memory.assign(shared_memory, shared_memory + dynamic_bytes(shape));
  for (const Variable& v : block.poisoned) {
    const auto* at = static_cast<const std::byte*>(v.at);
    block.memory.insert(block.memory.end(), at, at + v.n_bytes);
  }
}

void resume(const Shape& shape, Suspended& block) {
  now.block = block.index;
  fibers.swap(block.fibers);
  warps.swap(block.warps);
  poisoned = block.poisoned;
  shared_bytes = block.shared_bytes;
  const std::byte* from = block.memory.data();
  std::memcpy(shared_memory, from, dynamic_bytes(shape));
  from += dynamic_bytes(shape);
  for (const Variable& v : poisoned) {
    std::memcpy(v.at, from, v.n_bytes);
    from += v.n_bytes;
  }
  release(State::at_grid);
}

// Runs the block to its end, or until its threads wait for the grid: then it returns true.
bool run_threads() {
  do {
    run_warps();
  } while (release(State::at_block));
  const auto n_at_grid = static_cast<unsigned>(std::count_if(
      fibers.begin(), fibers.begin() + n_threads, [](const Fiber& f) { return f.state == State::at_grid; }));
  if (n_at_grid != 0 && n_at_grid != n_threads)
    fail("some threads of a block wait for the grid, and others do not");
  return n_at_grid != 0;
}

bool run_block(const Shape& shape, dim3 index, size_t set, const std::vector<Changes>* hidden) {
  now.block = index;
  poisoned.clear();
  shared_bytes = shape.shared_bytes;
  std::memset(shared_memory, 0xff, dynamic_bytes(shape));
  prepare_fibers(shape.block, set);
  waits = hidden != nullptr;
  if (waits) {
    Hidden earlier;
    earlier.hide(*hidden);
    do {
      run_warps();
    } while (std::none_of(fibers.begin(), fibers.begin() + n_threads,
                          [](const Fiber& f) { return f.state == State::at_previous; }) &&
             release(State::at_block));
    waits = false;
    earlier.reveal();
    release(State::at_previous);
  }
  return run_threads();
}

// Blocks that run up to their waits first: all of a small grid, a few of a large one, for hiding takes time.
uint64_t n_early_blocks(const std::vector<Changes>& unsettled) {
  size_t words = 0;
  for (const Changes& changes : unsettled) {
    for (const Run& run : changes) words += run.n + 64;
  }
  return std::clamp<uint64_t>((size_t{1} << 20) / (words + 1), 2, 64);
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "emulated GPU: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, " (block %u %u %u, thread %u %u %u)\n", now.block.x, now.block.y, now.block.z, now.thread.x,
          now.thread.y, now.thread.z);
  va_end(arguments);
  abort();
}

int lane() {
  return current->number % 32;
}
void wait_for_block() {
  wait(State::at_block);
}
void wait_for_warp() {
  wait(State::at_warp);
}
void wait_for_grid() {
  wait(State::at_grid);
}
void* dynamic_shared() {
  return shared_memory;
}
void poison_shared(void* variable, size_t n_bytes) {
  if (std::any_of(poisoned.begin(), poisoned.end(), [&](const Variable& v) { return v.at == variable; }))
    return;
  poisoned.push_back({variable, n_bytes});
  shared_bytes += n_bytes;
  if (shared_bytes > max_shared_bytes) fail("a block with %zu bytes of shared memory", shared_bytes);
  std::memset(variable, 0xff, n_bytes);
}
void wait_for_previous_kernel() {
  current->has_waited = true;
  if (waits) wait(State::at_previous);
}
void check_launch_bounds(unsigned n) {
  if (n_threads > n) fail("a block of %u threads; the kernel is compiled for %u", n_threads, n);
}
AsyncCopies& async_copies() {
  return current->copies;
}
unsigned draw() {
  order_seed = order_seed * 1664525u + 1013904223u;
  return order_seed >> 8;
}
WarpgroupProducts& warpgroup_products() {
  return current->products;
}

// Two sets of words alternate: a lane can be at most one exchange ahead of another that still reads.
const Words* exchange(unsigned mask, std::initializer_list<uint64_t> words) {
  if (mask != 0xffffffffu) fail("an exchange between only some lanes of a warp");
  if (n_threads % 32 != 0) fail("an exchange in a block of partial warps");
  auto& set = warps[static_cast<size_t>(current->number / 32)].words[current->n_exchanges++ % 2];
  std::copy(words.begin(), words.end(), set[lane()].word);
  wait_for_warp();
  return set;
}

void run_kernel(const Shape& shape, const std::function<void()>& kernel,
                const std::vector<Changes>& unsettled, size_t max_shared) {
  if (current) fail("a kernel within a kernel");
  body = &kernel;
  begins_early = shape.overlapping;
  max_shared_bytes = max_shared;
  const uint64_t n_early = begins_early ? n_early_blocks(unsettled) : 0;
  now.block_dim = shape.block;
  now.grid_dim = shape.grid;
  const dim3 grid = shape.grid;
  const uint64_t n_blocks = uint64_t{grid.x} * grid.y * grid.z;
  const bool last_first = draw() & 1;
  const auto nth = [&](uint64_t i) { return last_first ? n_blocks - 1 - i : i; };
  std::vector<Suspended> suspended;
  for (uint64_t i = 0; i < n_blocks; ++i) {
    const uint64_t at = nth(i);
    const dim3 index(static_cast<unsigned>(at % grid.x), static_cast<unsigned>(at / grid.x % grid.y),
                     static_cast<unsigned>(at / grid.x / grid.y));
    if (run_block(shape, index, suspended.size(), i < n_early ? &unsettled : nullptr)) {
      if (!shape.cooperative) fail("a grid waits for itself, whose launch is not cooperative");
      suspend(shape, suspended.emplace_back());
    }
    if (!suspended.empty() && suspended.size() != i + 1) fail("a block ends while others wait for it");
  }
  while (!suspended.empty()) {
    size_t n_waiting = 0;
    const size_t from = draw() % suspended.size();
    for (size_t i = 0; i < suspended.size(); ++i) {
      Suspended& block = suspended[(from + i) % suspended.size()];
      resume(shape, block);
      if (!run_threads()) continue;
      suspend(shape, block);
      ++n_waiting;
    }
    if (n_waiting != 0 && n_waiting != suspended.size()) fail("a block ends while others wait for it");
    if (n_waiting == 0) suspended.clear();
  }
  current = nullptr;
}

}  // namespace emulator
