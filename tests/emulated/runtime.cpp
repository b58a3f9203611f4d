// The runtime: guarded memory, and streams that do nothing until a thread waits for them. Any thread may call
// it; the waiting thread does the work.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "emulated/faults.h"
#include "emulated/threads.h"

using Work = std::function<void()>;

// The state of an event, which may outlive it.
struct EventState {
  EmulatedStream* stream = nullptr;
  uint64_t n_recorded = 0, n_reached = 0;
};
struct EmulatedEvent {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
};
struct EmulatedGraph {
  std::vector<Work> work;
};
struct EmulatedStream {
  struct Item {
    Work work;
    std::shared_ptr<EventState> awaited;  // the work waits until this event was reached n_reached times
    uint64_t n_reached = 0;
  };
  std::deque<Item> queue;
  EmulatedGraph* capture = nullptr;

  void add(Work work) {
    if (capture) {
      capture->work.push_back(std::move(work));
    } else {
      queue.push_back({std::move(work), nullptr, 0});
    }
  }
};

namespace {

// Protects everything below and the state of kernels and fibers.
std::recursive_mutex mutex;
using Lock = std::lock_guard<std::recursive_mutex>;

constexpr size_t kPage = 4096, kAlignment = 64, kTotalBytes = size_t{4} << 30;
constexpr size_t kDefaultShared = 48 << 10, kMaxShared = 227 << 10;

struct Allocation {
  void* mapping;
  size_t mapping_bytes, n_bytes;
};

std::map<void*, Allocation> allocations;
size_t used_bytes = 0;
std::vector<EmulatedStream*> streams;
std::map<const void*, size_t> shared_limits;
thread_local cudaError_t last_error = cudaSuccess;
uint32_t order_seed = 1;
int64_t n_copies_to_fail = -1;  // the n-th copy from the host fails

cudaError_t report(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

size_t round_up(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

unsigned draw(unsigned n) {
  order_seed = order_seed * 1664525u + 1013904223u;
  return (order_seed >> 8) % n;
}

// Does the next piece of work of a stream, or of another stream whose event it waits for.
void step(EmulatedStream& stream) {
  EmulatedStream::Item& front = stream.queue.front();
  if (front.awaited && front.awaited->n_reached < front.n_reached) return step(*front.awaited->stream);
  const EmulatedStream::Item item = std::move(front);
  stream.queue.pop_front();
  if (item.work) item.work();
}

// Runs a stream until done(). The order of other streams varies, so that no code can rely on it: they may
// have done nothing yet, be finished, or take turns.
template <class Done>
void run_until(EmulatedStream& stream, Done done) {
  const unsigned how = draw(3);
  for (EmulatedStream* other : streams) {
    while (how == 0 && other != &stream && !other->queue.empty()) step(*other);
  }
  while (!done()) {
    EmulatedStream* next = how == 1 ? streams[draw(static_cast<unsigned>(streams.size()))] : &stream;
    if (!next->queue.empty()) step(*next);
  }
}
void run_all(EmulatedStream& stream) {
  run_until(stream, [&] { return stream.queue.empty(); });
}
void run_up_to(const EventState& event) {
  if (event.stream) run_until(*event.stream, [&] { return event.n_reached >= event.n_recorded; });
}

void synchronize() {
  for (EmulatedStream* stream : streams) run_all(*stream);
}

bool legal(const emulator::Shape& s, const void* kernel) {
  const size_t n_threads = size_t{s.block.x} * s.block.y * s.block.z;
  const auto limit = shared_limits.find(kernel);
  return n_threads >= 1 && n_threads <= 1024 && s.grid.x >= 1 && s.grid.x <= INT_MAX && s.grid.y >= 1 &&
         s.grid.y <= 65535 && s.grid.z >= 1 && s.grid.z <= 65535 &&
         s.shared_bytes <= (limit == shared_limits.end() ? kDefaultShared : limit->second);
}

}  // namespace

void emulator::Shape::enqueue(const void* kernel, Work body) const {
  const Lock lock(mutex);
  if (!legal(*this, kernel)) {
    report(cudaErrorInvalidConfiguration);
    return;
  }
  stream->add([shape = *this, body = std::move(body)] { run_kernel(shape, body); });
}

// ---- The device ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = kTotalBytes;
  properties->major = 9;
  properties->multiProcessorCount = 6;
  properties->sharedMemPerBlockOptin = kMaxShared;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  return cudaDriverGetVersion(version);
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNotReady: return "device not ready";
    default: return "an error";
  }
}
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  return last_error;
}

// ---- Memory ----

// An allocation ends at the end of a page, except for alignment; the pages before and after are inaccessible.
// The alignment bytes are filled with NaN and checked by cudaFree.
cudaError_t cudaMalloc(void** address, size_t n_bytes) {
  const Lock lock(mutex);
  if (n_bytes > kTotalBytes - used_bytes) return report(cudaErrorMemoryAllocation);
  const size_t room = round_up(std::max<size_t>(n_bytes, 1), kAlignment), pages = round_up(room, kPage);
  const size_t mapping_bytes = pages + 2 * kPage;
  void* mapping = mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return report(cudaErrorMemoryAllocation);
  auto* inside = static_cast<std::byte*>(mapping) + kPage;
  if (mprotect(inside, pages, PROT_READ | PROT_WRITE) != 0) emulator::fail("mprotect");
  std::memset(inside, 0xff, std::min<size_t>(pages, 64 << 20));
  *address = inside + pages - room;
  allocations[*address] = {mapping, mapping_bytes, n_bytes};
  used_bytes += n_bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  if (!address) return cudaSuccess;
  const Lock lock(mutex);
  synchronize();
  const auto found = allocations.find(address);
  if (found == allocations.end()) return report(cudaErrorInvalidValue);
  const auto* begin = static_cast<const std::byte*>(address);
  for (size_t i = found->second.n_bytes; i < round_up(found->second.n_bytes, kAlignment); ++i) {
    if (begin[i] != std::byte{0xff})
      emulator::fail("byte %zu was written after an allocation of %zu bytes", i, found->second.n_bytes);
  }
  munmap(found->second.mapping, found->second.mapping_bytes);
  used_bytes -= found->second.n_bytes;
  allocations.erase(found);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** address, size_t n_bytes, unsigned) {
  *address = std::aligned_alloc(kPage, round_up(n_bytes, kPage));
  return *address ? cudaSuccess : report(cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* address) {
  std::free(address);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Lock lock(mutex);
  *free_bytes = kTotalBytes - used_bytes;
  *total_bytes = kTotalBytes;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(mutex);
  if (kind == cudaMemcpyHostToDevice && n_copies_to_fail >= 0 && n_copies_to_fail-- == 0)
    return report(cudaErrorInvalidValue);
  stream->add([=] { std::memmove(to, from, n_bytes); });
  return cudaSuccess;
}
void emulator::fail_copy_from_host(int64_t n) {
  const Lock lock(mutex);
  n_copies_to_fail = n;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n_bytes, cudaStream_t stream) {
  const Lock lock(mutex);
  stream->add([=] { std::memset(to, value, n_bytes); });
  return cudaSuccess;
}

// ---- Streams and events ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Lock lock(mutex);
  *stream = streams.emplace_back(new EmulatedStream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex);
  run_all(*stream);
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Lock lock(mutex);
  run_all(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(mutex);
  if (stream->capture) emulator::fail("a captured stream waits for an event");
  if (event->state->stream) stream->queue.push_back({nullptr, event->state, event->state->n_recorded});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  const std::shared_ptr<EventState> state = event->state;
  state->stream = stream;
  const uint64_t number = ++state->n_recorded;
  stream->add([state, number] { state->n_reached = number; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  const EventState& state = *event->state;
  if (state.n_reached < state.n_recorded) step(*state.stream);
  return state.n_reached < state.n_recorded ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex);
  run_up_to(*event->state);
  return cudaSuccess;
}

// ---- Graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock(mutex);
  stream->capture = new EmulatedGraph;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(mutex);
  *graph = std::exchange(stream->capture, nullptr);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new EmulatedGraph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const Lock lock(mutex);
  for (const Work& work : exec->work) stream->add(work);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

// ---- Kernels ----

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {90, 90};
  return cudaSuccess;
}
cudaError_t emulated_set_attribute(const void* kernel, cudaFuncAttribute, int value) {
  const Lock lock(mutex);
  if (value < 0 || static_cast<size_t>(value) > kMaxShared) return report(cudaErrorInvalidValue);
  shared_limits[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
