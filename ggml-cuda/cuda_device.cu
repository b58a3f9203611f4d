#include "ggml-cuda/cuda_device.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked.h"
#include "ggml-cuda/architectures.h"
#include "ggml-cuda/backend.h"
#include "ggml-cuda/chain.h"
#include "ggml-cuda/close_groups.h"
#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/driver.h"
#include "ggml-cuda/dtypes.h"
#include "ggml-cuda/fetcher.h"
#include "ggml-cuda/handed_bytes.h"
#include "ggml-cuda/pinned_memory.h"
#include "ggml-cuda/step_graphs.h"
#include "ggml-cuda/stream.h"

namespace tandem::cuda {
namespace {

constexpr size_t kScratchAlignment = 256;
constexpr size_t kCounterBytes = kCounters * sizeof(int);

std::vector<CompiledOpPtr> compile_ops(const CompileContext& context) {
  return lower<CompiledOpPtr>(context, compile_rope_kv, compile_gathers);
}

size_t scratch_of(const std::vector<CompiledOpPtr>& ops) {
  size_t most = 0;
  for (const CompiledOpPtr& op : ops) most = std::max(most, align_up(op->scratch_bytes, kScratchAlignment));
  return most;
}

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const CompileContext& context, Chains chains)
      : reads(count_reads(context.graph())),
        ops(compile_ops({context, context.gpu, context.cublas, reads})),
        slot_bytes(hand_bytes(ops)),
        scratch_bytes(kCounterBytes + behind_slots(2) + scratch_of(ops)) {
    ops = make_chains(std::move(ops), chains, context.gpu, !context.segment.addresses.empty());
  }

  LaunchContext context(cudaStream_t stream, const StepShape& shape, std::byte* scratch) const {
    std::byte* const slots = scratch + kCounterBytes;
    return {stream, shape, slots + behind_slots(2), {slots, slots + behind_slots(1)}, reinterpret_cast<int*>(scratch)};
  }

  // What follows the first slots.
  size_t behind_slots(size_t n_slots) const {
    size_t n_bytes = 0;
    for (size_t i = 0; i < n_slots; ++i) n_bytes += align_up(slot_bytes[i], kScratchAlignment);
    return n_bytes;
  }

  std::vector<int64_t> reads;  // while ops are compiled
  std::vector<CompiledOpPtr> ops;
  std::array<size_t, 2> slot_bytes;  // of handed bytes
  size_t scratch_bytes;
  StepGraphs graphs;
};

// For sums beside runs: NCCL's, or copies to and from host memory.
class CudaSideQueue final : public SideQueue {
 public:
  CudaSideQueue(int index, Stream& runs) : index_(index), runs_(runs) {}

  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override {
    use().copy_in(to, static_cast<const std::byte*>(from), n_bytes);
  }
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override {
    use().copy_out(static_cast<std::byte*>(to), from, n_bytes);
  }
  Event record() override { return use().record(); }
  void wait(Event event) override { use().wait(event); }
  bool has_reached(Event event) override {
    const SharedEvent pending = use().shared(event);
    return !pending || cudaEventQuery(pending.get()) != cudaErrorNotReady;  // wait() reports what has failed
  }
  std::optional<NativeQueue> native_queue() override {
    return NativeQueue{NativeQueue::Api::cuda, index_, use().get()};
  }
  void follow() override { use().wait_for(runs_); }
  void lead(Event event) override {
    const SharedEvent pending = use().shared(event);
    if (pending) TANDEM_CUDA(cudaStreamWaitEvent(runs_.get(), pending.get(), 0));
  }

 private:
  Stream& use() {
    TANDEM_CUDA(cudaSetDevice(index_));
    return stream_;
  }

  const int index_;
  Stream& runs_;
  Stream stream_{Stream::Use::side};
};

// The parts that need the GPU's context, which costs time and memory: created when the device is first used.
struct Opened {
  Stream stream;
  CublasHandle cublas{stream.get()};
  std::optional<Fetcher> fetcher;     // created on the first fetch
  std::optional<CudaSideQueue> side;  // created when it is first asked for
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, int number, const cudaDeviceProp& properties)
      : index_(index),
        gpu_{properties.major * 10 + properties.minor, properties.multiProcessorCount,
             panel_bytes_for(static_cast<int64_t>(properties.totalGlobalMem)), properties.l2CacheSize} {
    info_.backend = kBackendName;
    info_.name = info_.backend + std::to_string(number);
    info_.description =
        format("{}, sm_{}, {} multiprocessors, {:.1f} GiB", properties.name, gpu_.compute_capability,
               gpu_.n_multiprocessors, static_cast<double>(properties.totalGlobalMem) / (1 << 30));
  }

  ~CudaDevice() override {
    if (!opened_) return;
    cudaSetDevice(index_);
    opened_->side.reset();  // synchronizes, as the stream of runs does
    cudaStreamSynchronize(opened_->stream.get());
    cudaFree(scratch_);
    opened_.reset();
  }

  const DeviceInfo& info() const override { return info_; }

  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    return std::visit([&](const auto& op) { return why_not(graph, op); }, node.op);
  }

  DTypeSupport dtype_support(DType dtype) const override { return cuda::dtype_support(dtype); }

  size_t weight_bytes(const Weight& weight) const override { return device_weight_bytes(weight); }

  size_t scratch_bytes(const Segment& segment) const override {
    return CudaExecutable({{segment}, gpu_, nullptr}, chains_).scratch_bytes;
  }

  int64_t full_product_rows() const override { return 128; }  // a tile, and what reading weights again costs
  PinnedBytes pinned_bytes() const override {
    return {Stream::kRingBytes, Fetcher::kStagingBytes, Stream::kSideRingBytes};
  }

  MemoryInfo memory_info() const override {
    use();
    MemoryInfo info;
    TANDEM_CUDA(cudaMemGetInfo(&info.free_bytes, &info.total_bytes));
    return info;
  }

  DevicePtr alloc(size_t n_bytes) override {
    use();
    void* address = nullptr;
    const cudaError_t status = cudaMalloc(&address, std::max<size_t>(n_bytes, 1));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const MemoryInfo memory = memory_info();
      throw_error(ErrorCode::out_of_memory, "{}: cannot allocate {} bytes ({} of {} are free)", info_.name,
                  n_bytes, memory.free_bytes, memory.total_bytes);
    }
    check_cuda(status, "cudaMalloc");
    return static_cast<DevicePtr>(address);
  }

  void free(DevicePtr address) override {
    use();
    if (opened_->fetcher) opened_->fetcher->settle();
    TANDEM_CUDA(cudaFree(address));
  }

  void upload(DevicePtr to, const Weight& weight) override {
    Stream& stream = use();
    upload_weight(to, weight, stream.idle_ring(), stream.get());
    stream.synchronize();
  }

  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override {
    use().copy_in(to, static_cast<const std::byte*>(from), n_bytes);
  }
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override {
    use().copy_out(static_cast<std::byte*>(to), from, n_bytes);
  }
  void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) override {
    TANDEM_CUDA(cudaMemcpyAsync(to, from, n_bytes, cudaMemcpyDeviceToDevice, use().get()));
  }

  Event record() override { return use().record(); }
  void wait(Event event) override {
    use().wait(event);
    if (opened_->fetcher) opened_->fetcher->check();
  }
  bool has_reached(Event event) override {
    const SharedEvent pending = use().shared(event);
    return !pending || cudaEventQuery(pending.get()) != cudaErrorNotReady;  // wait() reports what has failed
  }

  std::optional<NativeQueue> native_queue() override {
    NativeQueue queue;
    queue.number = index_;
    queue.stream = use().get();
    return queue;
  }

  SideQueue* side_queue() override {
    Stream& stream = use();
    if (!opened_->side) opened_->side.emplace(index_, stream);
    return &*opened_->side;
  }

  Event fetch(DevicePtr to, const Weight& weight, Event after) override {
    Stream& stream = use();
    if (!opened_->fetcher) opened_->fetcher.emplace(index_);
    return opened_->fetcher->fetch(to, weight, stream.shared(after));
  }
  void join(Event fetched) override {
    Stream& stream = use();
    if (opened_->fetcher) opened_->fetcher->join(fetched, stream.get());
  }
  std::shared_ptr<const void> pin(std::span<const std::byte> bytes) override {
    use();
    PinnedMemory::List pages = PinnedMemory::of_process().pin(bytes);
    if (pages.empty()) return nullptr;
    return std::make_shared<const PinnedMemory::List>(std::move(pages));
  }

  void close_groups(const KvLayer& layer, std::span<const OpenBlock> blocks) override {
    launch_close_groups(layer, blocks, use().get());
  }

  std::unique_ptr<Executable> compile(const Segment& segment) override {
    use();
    auto executable = std::make_unique<CudaExecutable>(CompileContext{{segment}, gpu_, &opened_->cublas}, chains_);
    reserve_scratch(executable->scratch_bytes);
    return executable;
  }

  void run(Executable& executable, const StepShape& shape) override {
    Stream& stream = use();
    auto& own = static_cast<CudaExecutable&>(executable);
    reserve_scratch(own.scratch_bytes);
    const LaunchContext context = own.context(stream.get(), shape, scratch_);
    StepGraphs::can_record(own.ops, shape) ? own.graphs.run(own.ops, context)
                                           : launch_one_by_one(own.ops, context);
  }

 private:
  // Makes this GPU current for the calling thread. Even a query may open it.
  Stream& use() const {
    TANDEM_CUDA(cudaSetDevice(index_));
    if (!opened_) opened_.emplace();
    return opened_->stream;
  }

  // Executables of a device run one after the other and share one scratch. It is allocated when they are
  // compiled; a run allocates it only if that failed.
  void reserve_scratch(size_t n_bytes) {
    if (n_bytes <= scratch_bytes_) return;
    TANDEM_CUDA(cudaStreamSynchronize(opened_->stream.get()));
    scratch_bytes_ = 0;
    TANDEM_CUDA(cudaFree(std::exchange(scratch_, nullptr)));
    scratch_ = alloc(n_bytes);
    TANDEM_CUDA(cudaMemsetAsync(scratch_, 0, std::min(kCounterBytes, n_bytes), opened_->stream.get()));
    scratch_bytes_ = n_bytes;
  }

  int index_;  // the driver's
  Gpu gpu_;
  const Chains chains_ = chains_wanted();
  DeviceInfo info_;
  mutable std::optional<Opened> opened_;
  std::byte* scratch_ = nullptr;
  size_t scratch_bytes_ = 0;
};

}  // namespace

FoundDevices find_devices() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  FoundDevices found;
  if (status != cudaSuccess || count == 0) {
    found.why_none = why_no_gpu(status);
    return found;
  }
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) {
      found.why_none = why_no_gpu(cudaGetLastError());
    } else if (!has_code_for(TANDEM_CUDA_ARCHS, properties.major * 10 + properties.minor)) {
      found.why_none = format("this build has no code for {} (sm_{}{})", properties.name, properties.major,
                              properties.minor);
    } else {
      const auto number = static_cast<int>(found.devices.size());
      found.devices.push_back(std::make_unique<CudaDevice>(i, number, properties));
    }
  }
  if (!found.devices.empty()) found.why_none.clear();
  return found;
}

}  // namespace tandem::cuda
