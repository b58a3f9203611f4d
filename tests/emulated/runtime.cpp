// The runtime: guarded memory, and streams that do nothing until a thread waits for them. Any thread may call
// it; the waiting thread does the work.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "emulated/faults.h"
#include "emulated/gpu.h"
#include "emulated/threads.h"

// A piece of work of a stream. Of a kernel: whether it may begin before the one before it has ended.
struct Work {
  std::function<void()> run;
  bool is_kernel = false, overlapping = false;
};

// The state of an event, which may outlive it.
struct EventState {
  EmulatedStream* stream = nullptr;
  uint64_t n_recorded = 0, n_reached = 0;
};
struct EmulatedEvent {
  std::shared_ptr<EventState> state = std::make_shared<EventState>();
  bool blocking = false;
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
  // What the last kernels have changed, each of which may still run when the next begins.
  std::vector<emulator::Changes> unsettled;

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

constexpr size_t kPage = 4096, kAlignment = 64;
constexpr size_t kDefaultShared = 48 << 10;
constexpr size_t kUnsettled = 4;  // kernels: enough to see what does not wait

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
int64_t n_records_to_fail = -1, n_registers_to_fail = -1;
// Host memory that is page-locked where it is.
struct Registered {
  std::byte* end = nullptr;
  int64_t n_copies = 0;  // from there, on their way
};
std::map<std::byte*, Registered> registered;  // by begin
emulator::Counts counted;
std::set<const void*> loaded;  // kernels

emulator::GpuModel chosen_gpu() {
  emulator::GpuModel model;
  if (const char* text = std::getenv("TANDEM_EMULATED_GPU")) {
    if (std::sscanf(text, "%d,%d", &model.compute_capability, &model.n_multiprocessors) != 2)
      emulator::fail("TANDEM_EMULATED_GPU: %s", text);
  }
  return model;
}
emulator::GpuModel model = chosen_gpu();

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
  if (!item.work.run) return;
  if (!item.work.is_kernel) return item.work.run();
  if (!item.work.overlapping) stream.unsettled.clear();
  emulator::begin_changes();
  item.work.run();
  stream.unsettled.push_back(emulator::end_changes());
  if (stream.unsettled.size() > kUnsettled) stream.unsettled.erase(stream.unsettled.begin());
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

// A kernel is loaded when it is first used, which takes memory and may wait for the device.
void load(const void* kernel) {
  if (!kernel || !loaded.insert(kernel).second) return;
  for (const EmulatedStream* stream : streams) {
    if (stream->capture) emulator::fail("a kernel is loaded while a graph is recorded");
  }
  ++counted.kernels_loaded;
}

bool legal(const emulator::Shape& s, const void* kernel) {
  const size_t n_threads = size_t{s.block.x} * s.block.y * s.block.z;
  const auto limit = shared_limits.find(kernel);
  return n_threads >= 1 && n_threads <= 1024 && s.grid.x >= 1 && s.grid.x <= INT_MAX && s.grid.y >= 1 &&
         s.grid.y <= 65535 && s.grid.z >= 1 && s.grid.z <= 65535 &&
         s.shared_bytes <= (limit == shared_limits.end() ? kDefaultShared : limit->second);
}

}  // namespace

void emulator::Shape::enqueue(const void* kernel, std::function<void()> body) const {
  const Lock lock(mutex);
  if (!legal(*this, kernel)) {
    report(cudaErrorInvalidConfiguration);
    return;
  }
  // One block a multiprocessor, whatever it takes.
  if (cooperative && size_t{grid.x} * grid.y * grid.z > static_cast<size_t>(model.n_multiprocessors)) {
    report(cudaErrorCooperativeLaunchTooLarge);
    return;
  }
  load(kernel);
  (kernel ? counted.launches : counted.cublas_products) += !stream->capture;
  const size_t max_shared = shared_limits.contains(kernel) ? model.max_shared() : kDefaultShared;
  EmulatedStream* const in = stream;
  stream->add({[shape = *this, body = std::move(body), in, max_shared] {
                 run_kernel(shape, body, in->unsettled, max_shared);
               },
               true, overlapping});
}

const emulator::GpuModel& emulator::gpu() {
  return model;
}
void emulator::become(const GpuModel& other) {
  const Lock lock(mutex);
  if (used_bytes > 0) fail("another GPU while memory is allocated");
  model = other;
}
size_t emulator::GpuModel::max_shared() const {
  switch (compute_capability) {
    case 80:
    case 87: return 163 << 10;
    case 90:
    case 100:
    case 103:
    case 110: return 227 << 10;
    default: return 99 << 10;
  }
}
emulator::Counts emulator::counts() {
  const Lock lock(mutex);
  return counted;
}
emulator::Counts emulator::operator-(const Counts& a, const Counts& b) {
  return {a.launches - b.launches,
          a.graph_launches - b.graph_launches,
          a.graph_kernels - b.graph_kernels,
          a.kernels_loaded - b.kernels_loaded,
          a.copies_from_host - b.copies_from_host,
          a.copies_to_host - b.copies_to_host,
          a.bytes_to_host - b.bytes_to_host,
          a.cublas_products - b.cublas_products,
          a.bytes_from_registered - b.bytes_from_registered};
}

// ---- The device ----

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "emulated GPU");
  properties->totalGlobalMem = model.memory_bytes;
  properties->major = model.compute_capability / 10;
  properties->minor = model.compute_capability % 10;
  properties->multiProcessorCount = model.n_multiprocessors;
  properties->sharedMemPerBlockOptin = model.max_shared();
  properties->l2CacheSize = 1 << 20;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  const Lock lock(mutex);
  synchronize();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
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
    case cudaErrorHostMemoryAlreadyRegistered: return "host memory is registered already";
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
  if (n_bytes > model.memory_bytes - used_bytes) return report(cudaErrorMemoryAllocation);
  const size_t room = round_up(std::max<size_t>(n_bytes, 1), kAlignment), pages = round_up(room, kPage);
  const size_t mapping_bytes = pages + 2 * kPage;
  void* mapping = mmap(nullptr, mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return report(cudaErrorMemoryAllocation);
  auto* inside = static_cast<std::byte*>(mapping) + kPage;
  if (mprotect(inside, pages, PROT_READ | PROT_WRITE) != 0) emulator::fail("mprotect");
  std::memset(inside, 0xff, std::min<size_t>(pages, 64 << 20));
  *address = inside + pages - room;
  emulator::watch(inside, pages);
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
  emulator::unwatch(static_cast<std::byte*>(found->second.mapping) + kPage);
  for (EmulatedStream* stream : streams) stream->unsettled.clear();
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
cudaError_t cudaHostRegister(void* address, size_t n_bytes, unsigned) {
  const Lock lock(mutex);
  if (n_registers_to_fail >= 0 && n_registers_to_fail-- == 0) return report(cudaErrorMemoryAllocation);
  auto *const begin = static_cast<std::byte*>(address), *const end = begin + n_bytes;
  for (const auto& [other, range] : registered) {
    if (begin < range.end && other < end) return report(cudaErrorHostMemoryAlreadyRegistered);
  }
  registered[begin] = {end};
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const Lock lock(mutex);
  const auto found = registered.find(static_cast<std::byte*>(address));
  if (found == registered.end()) emulator::fail("host memory that is not registered is unregistered");
  if (found->second.n_copies > 0) emulator::fail("host memory is unregistered while copies from it are on their way");
  registered.erase(found);
  return cudaSuccess;
}
size_t emulator::registered_bytes() {
  const Lock lock(mutex);
  size_t n = 0;
  for (const auto& [begin, range] : registered) n += static_cast<size_t>(range.end - begin);
  return n;
}
void emulator::fail_register(int64_t n) {
  const Lock lock(mutex);
  n_registers_to_fail = n;
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const Lock lock(mutex);
  *free_bytes = model.memory_bytes - used_bytes;
  *total_bytes = model.memory_bytes;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const Lock lock(mutex);
  if (kind == cudaMemcpyHostToDevice && n_copies_to_fail >= 0 && n_copies_to_fail-- == 0)
    return report(cudaErrorInvalidValue);
  Registered* source = nullptr;
  if (kind == cudaMemcpyHostToDevice) {
    const auto *const begin = static_cast<const std::byte*>(from), *const end = begin + n_bytes;
    for (auto& [first, range] : registered) {
      if (begin >= range.end || first >= end) continue;
      if (begin < first || end > range.end) return report(cudaErrorInvalidValue);
      source = &range;
      ++source->n_copies;
      counted.bytes_from_registered += static_cast<int64_t>(n_bytes);
    }
  }
  counted.copies_from_host += kind == cudaMemcpyHostToDevice;
  counted.copies_to_host += kind == cudaMemcpyDeviceToHost;
  counted.bytes_to_host += kind == cudaMemcpyDeviceToHost ? static_cast<int64_t>(n_bytes) : 0;
  stream->add({[=] {
    stream->unsettled.clear();
    emulator::allow_writes(to, n_bytes);
    std::memmove(to, from, n_bytes);
    if (source) --source->n_copies;
  }});
  return cudaSuccess;
}
void emulator::fail_event_record(int64_t n) {
  const Lock lock(mutex);
  n_records_to_fail = n;
}
void emulator::fail_copy_from_host(int64_t n) {
  const Lock lock(mutex);
  n_copies_to_fail = n;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t n_bytes, cudaStream_t stream) {
  const Lock lock(mutex);
  stream->add({[=] {
    stream->unsettled.clear();
    emulator::allow_writes(to, n_bytes);
    std::memset(to, value, n_bytes);
  }});
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
  if (event->state->stream) stream->queue.push_back({{}, event->state, event->state->n_recorded});
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new EmulatedEvent;
  (*event)->blocking = (flags & cudaEventBlockingSync) != 0;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(mutex);
  if (n_records_to_fail >= 0 && n_records_to_fail-- == 0) return report(cudaErrorInvalidValue);
  const std::shared_ptr<EventState> state = event->state;
  state->stream = stream;
  const uint64_t number = ++state->n_recorded;
  stream->add({[state, number] { state->n_reached = number; }});
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock(mutex);
  const EventState& state = *event->state;
  if (state.n_reached < state.n_recorded) step(*state.stream);
  return state.n_reached < state.n_recorded ? report(cudaErrorNotReady) : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Lock lock(mutex);
  if (!event->blocking)
    emulator::fail("a wait that takes a core: the event is without cudaEventBlockingSync");
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
  ++counted.graph_launches;
  if (exec->work.empty()) return cudaSuccess;
  stream->add({[stream] { stream->unsettled.clear(); }});  // a graph begins when all before it has ended
  for (const Work& work : exec->work) {
    stream->add(work);
    counted.graph_kernels += work.is_kernel;
  }
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

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const Lock lock(mutex);
  load(kernel);
  *attributes = {model.compute_capability, model.compute_capability, 0};
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  const Lock lock(mutex);
  load(kernel);
  if (value < 0 || static_cast<size_t>(value) > model.max_shared()) return report(cudaErrorInvalidValue);
  shared_limits[kernel] = static_cast<size_t>(value);
  return cudaSuccess;
}
