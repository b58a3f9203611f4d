#include "cpu/cpu_device.h"

#include <cstring>
#include <map>

#include "base/checked.h"
#include "base/numa.h"
#include "cpu/compiled_op.h"
#include "cpu/fusions.h"
#include "cpu/host_memory.h"

namespace tandem::cpu {
namespace {

class CpuExecutable final : public Executable {
 public:
  std::vector<CompiledOpPtr> ops;
};

// Binds workers to nodes in order, as the rows of weights are divided: those that steps of one token use, and then those
// that only longer steps use.
void bind_workers(ThreadPool& pool, const NodeShares& nodes, int n_for_one_token) {
  pool.run([&](Worker& worker) {
    const int i = worker.index(), n_more = pool.n_threads() - n_for_one_token;
    const size_t node =
        i < n_for_one_token ? nodes.node_of(i, n_for_one_token) : nodes.node_of(i - n_for_one_token, n_more);
    bind_thread(nodes.node(node).cpus);
  });
}

void bind_workers(ThreadPool& pool, const NumaNode& node) {
  pool.run([&](Worker&) { bind_thread(node.cpus); });
}

Kernels kernels_of(const CpuOptions& options) {
  Kernels kernels = cpu::kernels(options.isa);
  if (options.products) kernels.linear = *options.products;
  return kernels;
}

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : kernels_(kernels_of(options)),
        n_threads_(options.n_threads > 0 ? options.n_threads : physical_core_count()),
        n_threads_batch_(options.n_threads_batch > 0 ? options.n_threads_batch : n_threads_),
        pool_(std::max(n_threads_, n_threads_batch_)),
        observer_(options.observer),
        cache_observer_(options.cache_observer) {
    n_threads_ = std::min(n_threads_, pool_.n_threads());
    n_threads_batch_ = std::min(n_threads_batch_, pool_.n_threads());
    place_workers(options);
    info_.name = info_.backend = "CPU";
    info_.description = std::string(isa_name(options.isa)) + ", " + std::to_string(n_threads_) + " threads";
    info_.host_memory = true;
  }

  const DeviceInfo& info() const override { return info_; }

  std::string why_unsupported(const Graph& graph, const Node& node) const override {
    for (TensorId id : inputs_of(node.op)) {
      const Tensor& t = graph.tensor(id);
      if (t.role == Role::weight && dtype_support(t.dtype).multiply == KernelPath::none) {
        return t.name + ": dtype " + std::string(dtype_name(t.dtype)) + " has no kernel";
      }
    }
    return "";
  }

  DTypeSupport dtype_support(DType dtype) const override {
    if (!dtype_info(dtype).to_float) return {};
    const KernelPath path = kernels_.linear.has_kernel(dtype) ? KernelPath::own : KernelPath::generic;
    return {path, path};
  }

  MemoryInfo memory_info() const override { return host_memory_info(); }

  DevicePtr alloc(size_t n_bytes) override {
    HostMemory memory(n_bytes);
    interleave(memory.data(), n_bytes, nodes_);  // the cache, above all: any worker may read any part
    DevicePtr address = memory.data();
    allocations_.emplace(address, std::move(memory));
    return address;
  }

  void free(DevicePtr address) override { TANDEM_CHECK(allocations_.erase(address) == 1); }

  void copy_in(DevicePtr to, const void* from, size_t n_bytes) override { memcpy(to, from, n_bytes); }
  void copy_out(void* to, DevicePtr from, size_t n_bytes) override { memcpy(to, from, n_bytes); }
  void copy_within(DevicePtr to, DevicePtr from, size_t n_bytes) override { memmove(to, from, n_bytes); }
  Event record() override { return 0; }
  void wait(Event) override {}

  size_t weight_bytes(const Weight&) const override { return 0; }
  void upload(DevicePtr, const Weight&) override { TANDEM_CHECK(!"weights are used where they are mapped"); }

  size_t scratch_bytes(const Segment& segment) const override {
    const std::vector<CompiledOpPtr> ops = compile_ops(segment);
    return shared_bytes_of(ops) + worker_bytes_of(ops) * static_cast<size_t>(pool_.n_threads());
  }

  std::unique_ptr<Executable> compile(const Segment& segment) override {
    auto executable = std::make_unique<CpuExecutable>();
    executable->ops = compile_ops(segment);
    reserve_scratch(shared_bytes_of(executable->ops), worker_bytes_of(executable->ops));
    return executable;
  }

  void run(Executable& executable, const StepShape& shape) override {
    const auto& ops = static_cast<CpuExecutable&>(executable).ops;
    pool_.run(
        [&](Worker& worker) {
          std::byte* own =
              scratch_.data() + shared_bytes_ + static_cast<size_t>(worker.index()) * scratch_bytes_;
          const RunContext context{shape, scratch_.data(), own};
          for (const CompiledOpPtr& op : ops) {
            op->run(worker, context);
            if (!observer_ && !cache_observer_) continue;
            if (worker.index() == 0) observe(*op, context);
            worker.barrier();
          }
        },
        shape.n_tokens == 1 ? n_threads_ : n_threads_batch_);
  }

 private:
  void place_workers(const CpuOptions& options) {
    if (options.numa == NumaPolicy::anywhere) return;
    std::vector<NumaNode> nodes = options.nodes.empty() ? numa_nodes() : options.nodes;
    if (options.numa == NumaPolicy::isolate) {
      bind_workers(pool_, nodes[current_numa_node(nodes)]);
    } else {
      nodes_ = NodeShares(std::move(nodes));
      bind_workers(pool_, nodes_, n_threads_);
    }
  }

  std::vector<CompiledOpPtr> compile_ops(const Segment& segment) const {
    return cpu::compile_ops(CompileContext{{segment}, kernels_, pool_.n_threads(), nodes_});
  }

  void observe(const CompiledOp& op, const RunContext& context) const {
    if (observer_) op.observe(observer_, context);
    if (!cache_observer_) return;
    const int64_t n_bytes = op.cache_bytes_read(context);
    if (n_bytes > 0) cache_observer_(n_bytes);
  }

  static size_t shared_bytes_of(const std::vector<CompiledOpPtr>& ops) {
    size_t most = 0;
    for (const CompiledOpPtr& op : ops) most = std::max(most, align_up(op->shared_bytes, 64));
    return most;
  }
  static size_t worker_bytes_of(const std::vector<CompiledOpPtr>& ops) {
    size_t most = 0;
    for (const CompiledOpPtr& op : ops) most = std::max(most, align_up(op->scratch_bytes, 64));
    return most;
  }

  // Executables of a device run one at a time and share one scratch, sized for the largest need.
  void reserve_scratch(size_t shared, size_t scratch) {
    if (shared <= shared_bytes_ && scratch <= scratch_bytes_ && scratch_.data()) return;
    shared_bytes_ = std::max(shared_bytes_, shared);
    scratch_bytes_ = std::max(scratch_bytes_, scratch);
    scratch_ = HostMemory();
    scratch_ = HostMemory(shared_bytes_ + scratch_bytes_ * static_cast<size_t>(pool_.n_threads()));
  }

  const Kernels kernels_;
  int n_threads_;
  int n_threads_batch_;
  ThreadPool pool_;
  NodeShares nodes_;
  ProductObserver observer_;
  CacheReadObserver cache_observer_;
  DeviceInfo info_;
  std::map<DevicePtr, HostMemory> allocations_;
  HostMemory scratch_;
  size_t shared_bytes_ = 0;
  size_t scratch_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace tandem::cpu
