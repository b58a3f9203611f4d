#include "ggml-cuda/chain.cuh"
#include "ggml-cuda/chain_tiles.cuh"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string_view>

#include "ggml-cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kStaticBytes = 4096;  // of a kernel's shared memory, at most
constexpr size_t kSmallShared = size_t{128} << 10;

// What a chain does, in order. The ops own what is pointed at.
struct ChainPlan {
  std::vector<ChainStage> stages;
  int front_bytes = 0;                       // of shared memory
  int n_warps = kMaxChainWarps;              // of a block
  const HandedBytes* first_bytes = nullptr;  // of the input of the first stage
  ChainRotation rotation{};
};

// A kernel and what it can do.
struct Kernel {
  const void* function;
  void (*launch)(const ChainPlan& plan, const Kernel& kernel, int n_blocks, const LaunchContext& context);
  bool (*has)(DType);
  int (*input_bytes)(int k);
  int ring_bytes;  // of a warp
  int task_pairs;
  std::optional<Encoding> encoding;
};

template <auto kKernel>
void launch_kernel(const ChainPlan& plan, const Kernel& kernel, int n_blocks, const LaunchContext& context) {
  ChainArgs args{};
  std::copy(plan.stages.begin(), plan.stages.end(), args.stages);
  if (plan.first_bytes && kernel.encoding && plan.first_bytes->is_handed(1))
    args.stages[0].encoded = plan.first_bytes->at(context, static_cast<int>(*kernel.encoding));
  args.rotation = plan.rotation;
  args.n_stages = static_cast<int>(plan.stages.size());
  args.front_bytes = plan.front_bytes;
  args.counters = context.counters + kCounters - 2;
  launch_together(kKernel, static_cast<unsigned>(n_blocks), 32 * static_cast<unsigned>(plan.n_warps),
                  static_cast<size_t>(plan.front_bytes + plan.n_warps * kernel.ring_bytes), context.stream, args);
}

template <class K, auto kKernel>
Kernel kernel_of() {
  Kernel kernel{reinterpret_cast<const void*>(kKernel), launch_kernel<kKernel>, K::has, K::input_bytes,
                K::kSlots * K::kSlotBytes, K::kTaskPairs, std::nullopt};
  if (!K::kFloats) kernel.encoding = K::kEncoding;
  return kernel;
}
template <DType... kDTypes>
Kernel kernel_for([[maybe_unused]] Chains chains) {
  if constexpr (!ChainDTypes<kDTypes...>::kFloats) {
    if (chains == Chains::of_tiles) return kernel_of<TileKind<kDTypes...>, tile_chain_kernel<TileKind<kDTypes...>>>();
  }
  return kernel_of<ChainKind<kDTypes...>, chain_kernel<ChainKind<kDTypes...>>>();
}

// The types of whole models, and the mixtures that K types come in.
std::vector<Kernel> make_kernels(Chains chains) {
  return {kernel_for<DType::F16>(chains),  kernel_for<DType::BF16>(chains),
          kernel_for<DType::Q8_0>(chains), kernel_for<DType::Q4_0>(chains),
          kernel_for<DType::Q4_K, DType::Q6_K>(chains), kernel_for<DType::Q5_K, DType::Q6_K>(chains)};
}
const std::vector<Kernel>& all_kernels(Chains chains) {
  static const std::vector<Kernel> of_pairs = make_kernels(Chains::of_pairs), of_tiles = make_kernels(Chains::of_tiles);
  return chains == Chains::of_tiles ? of_tiles : of_pairs;
}

// Whether copies of 4 or 16 bytes to shared memory find the rows aligned.
bool has_aligned_rows(const DeviceWeight& w) {
  if (is_plain(w.dtype)) return w.n_pieces != w.k;
  return w.k % (piece_bytes(w.dtype).super % 4 == 0 ? 256 : 512) == 0;
}

bool overlap(const float* a, int64_t n_a, const float* b, int64_t n_b) {
  return a != nullptr && b != nullptr && a < b + n_b && b < a + n_a;
}

// A run of ops as a chain.
class ChainBuilder {
 public:
  ChainBuilder(Chains chains, const Gpu& gpu) : gpu_(gpu) {
    for (const Kernel& kernel : all_kernels(chains)) kernels_.push_back(&kernel);
    if (shared_limit(gpu.compute_capability) < kSmallShared) plan_.n_warps = kMaxChainWarps / 2;
  }

  // Returns false if the op cannot be the next of the chain.
  bool add(const CompiledOp& op) {
    const ChainPart* part = op.chain_part();
    if (!part) return false;
    if (const auto* norm = std::get_if<ChainNorm>(&part->work)) {
      if (norm_ || norm->stage.k % kLaneColumns != 0) return false;
      norm_ = norm;
      ++n_ops_;
      return true;
    }
    const auto* rope = std::get_if<ChainRope>(&part->work);
    if (!(rope ? add_rotation(*rope) : add_products(std::get<ChainProducts>(part->work)))) return false;
    n_complete_ = ++n_ops_;
    return true;
  }

  size_t n_ops() const { return n_complete_; }  // without a norm at the end
  const Kernel& kernel() const { return *kernels_.front(); }
  const ChainPlan& plan() const { return plan_; }

 private:
  // Those that `can` and have memory enough.
  template <class Can, class FrontBytes>
  bool keep_kernels(Can&& can, FrontBytes&& front_bytes) {
    std::vector<const Kernel*> kernels = kernels_;
    std::erase_if(kernels, [&](const Kernel* kernel) {
      if (!can(*kernel)) return true;
      const int front = std::max(plan_.front_bytes, front_bytes(*kernel));
      return !fits(*kernel, front);
    });
    if (kernels.empty()) return false;
    kernels_ = std::move(kernels);
    plan_.front_bytes = std::max(plan_.front_bytes, front_bytes(kernel()));  // the same for all: of one way to read the input
    return true;
  }
  bool fits(const Kernel& kernel, int front_bytes) const {
    return static_cast<size_t>(front_bytes + plan_.n_warps * kernel.ring_bytes + kStaticBytes) <= shared_limit(gpu_.compute_capability);
  }

  // Of a matrix of m rows; all kernels that are left have tasks of one size.
  int n_tasks(MatvecMode mode, int m) const {
    const int size = kernel().task_pairs;
    return (n_pairs(mode, m) + size - 1) / size;
  }

  bool add_products(const ChainProducts& products) {
    const int k = products.targets.front().w.k;
    if (products.targets.size() > kMaxMatvecWeights) return false;
    if (norm_ && (norm_->makes != products.reads || norm_->stage.k != k)) return false;
    for (const MatvecTarget& t : products.targets) {
      if (!has_aligned_rows(t.w)) return false;
    }
    if (norm_ && overlap(norm_->stage.x, k, norm_->stage.normalized, k)) return false;
    // Where results go to what the norm is made of, which other blocks may still read, or what it makes is added to them, which other
    // blocks may not have stored, it has a stage of its own.
    const bool alone = norm_ && std::any_of(products.targets.begin(), products.targets.end(), [&](const MatvecTarget& t) {
      return overlap(norm_->stage.x, k, t.y, t.w.m) || overlap(norm_->stage.normalized, k, t.residual, t.w.m);
    });
    if (plan_.stages.size() + (alone ? 2 : 1) > kChainStages) return false;
    const auto can = [&](const Kernel& kernel) {
      return std::all_of(products.targets.begin(), products.targets.end(),
                         [&](const MatvecTarget& t) { return kernel.has(t.w.dtype); });
    };
    if (!keep_kernels(can, [&](const Kernel& kernel) { return kernel.input_bytes(k); })) return false;

    if (alone) plan_.stages.push_back(norm_->stage);
    ChainStage stage = norm_ && !alone ? norm_->stage : ChainStage{};
    if (!norm_ || alone) stage.x = products.x;
    stage.k = k;
    stage.mode = products.mode;
    stage.activation = products.activation;
    for (const MatvecTarget& t : products.targets) {
      MatvecTarget& to = stage.targets[stage.n_targets++] = t;
      to.first_block = stage.n_tasks;
      if (!is_paired(stage.mode)) stage.n_tasks += n_tasks(stage.mode, t.w.m);
    }
    if (is_paired(stage.mode)) stage.n_tasks = n_tasks(stage.mode, stage.targets[0].w.m);
    if (plan_.stages.empty() && !norm_) plan_.first_bytes = products.bytes;
    plan_.stages.push_back(stage);
    norm_ = nullptr;
    return true;
  }
  // Of the results of the last stage, which nothing else reads but as it leaves them.
  bool add_rotation(const ChainRope& rope) {
    const RopeKvCall& call = *rope.call;
    if (norm_ || plan_.stages.empty() || plan_.rotation.stage >= 0 || call.n_pairs > kChainPairs) return false;
    if (call.pools[1].head_dim % 2 != 0) return false;  // a pair of values is of one head
    if (plan_.stages.back().n_targets != 3) return false;  // queries, keys and values
    ChainStage& stage = plan_.stages.back();
    const auto target_with = [&](const float* y) {
      for (int t = 0; t < stage.n_targets; ++t) {
        if (stage.targets[t].y == y && stage.targets[t].residual == nullptr) return static_cast<int8_t>(t);
      }
      return int8_t{-1};
    };
    ChainRotation& rotation = plan_.rotation;
    rotation.queries = target_with(call.q), rotation.keys = target_with(call.kv[0]), rotation.values = target_with(call.kv[1]);
    if (stage.mode != MatvecMode::linear || rotation.queries < 0 || rotation.keys < 0 || rotation.values < 0) return false;
    if (rotation.queries == rotation.keys || rotation.keys == rotation.values) return false;  // nowhere yet
    rotation.stage = static_cast<int>(plan_.stages.size()) - 1;
    rotation.style = rope.style;
    rotation.call = call;
    std::copy_n(rope.table->turns_per_position, call.n_pairs, rotation.table.turns_per_position);
    rotation.table.magnitude = rope.table->magnitude;
    rotation.table.temperature_scale = rope.table->temperature_scale;
    rotation.table.temperature_length = rope.table->temperature_length;
    stage.head_dim = call.head_dim;
    stage.n_pairs = call.n_pairs;
    if (rope.style == RopeStyle::half) stage.halves = 1u << rotation.queries | 1u << rotation.keys;
    return true;
  }

  Gpu gpu_;
  std::vector<const Kernel*> kernels_;  // those that can do all of it
  ChainPlan plan_;
  const ChainNorm* norm_ = nullptr;  // waits for its product
  size_t n_ops_ = 0, n_complete_ = 0;
};

// The first of `ops`, at most `most`, as far as they make a chain.
ChainBuilder chain_of(std::span<const CompiledOpPtr> ops, size_t most, Chains chains, const Gpu& gpu) {
  ChainBuilder chain(chains, gpu);
  for (size_t i = 0; i < std::min(most, ops.size()) && chain.add(*ops[i]); ++i) {
  }
  return chain;
}

// Whether none of the first n ops makes bytes that one behind them reads: they are not made in a chain.
bool is_self_contained(std::span<const CompiledOpPtr> ops, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const BytesMaker* maker = ops[i]->bytes_maker();
    if (!maker || maker->bytes.slot < 0 || !maker->bytes.any_wanted()) continue;
    for (size_t at = n; at < ops.size() && at <= i + 2; ++at) {
      const BytesReader* reader = ops[at]->bytes_reader();
      if (reader && reader->bytes.slot >= 0 && reader->tensor == maker->tensor) return false;
    }
  }
  return true;
}

class CompiledChain final : public CompiledOp {
 public:
  CompiledChain(std::vector<CompiledOpPtr> ops, const ChainBuilder& chain, const Gpu& gpu)
      : ops_(std::move(ops)), kernel_(chain.kernel()), plan_(chain.plan()), n_blocks_(gpu.n_multiprocessors) {
    for (const CompiledOpPtr& op : ops_) scratch_bytes = std::max(scratch_bytes, op->scratch_bytes);
  }

  void launch(const LaunchContext& context) const override {
    if (context.shape.n_tokens == 1 && context.shape.n_outputs == 1) return kernel_.launch(plan_, kernel_, n_blocks_, context);
    for (const CompiledOpPtr& op : ops_) op->launch(context);
  }

  bool repeats(const StepShape& shape) const override {
    return std::all_of(ops_.begin(), ops_.end(), [&](const CompiledOpPtr& op) { return op->repeats(shape); });
  }

 private:
  std::vector<CompiledOpPtr> ops_;  // for other numbers of tokens; what the plan points at is theirs
  const Kernel& kernel_;
  ChainPlan plan_;
  int n_blocks_;
};

}  // namespace

Chains chains_wanted() {
  const char* text = std::getenv("TANDEM_CUDA_CHAINS");
  const std::string_view wanted = text == nullptr ? "" : text;
  if (wanted == "0") return Chains::none;
  return wanted == "tiles" ? Chains::of_tiles : Chains::of_pairs;
}

std::vector<CompiledOpPtr> make_chains(std::vector<CompiledOpPtr> ops, Chains chains, const Gpu& gpu, bool is_present) {
  if (chains == Chains::none) return ops;
  std::vector<CompiledOpPtr> with_chains;
  for (size_t first = 0; first < ops.size();) {
    const std::span<const CompiledOpPtr> rest = std::span(ops).subspan(first);
    ChainBuilder chain = chain_of(rest, rest.size(), chains, gpu);
    while (chain.n_ops() >= 2 && !is_self_contained(rest, chain.n_ops())) chain = chain_of(rest, chain.n_ops() - 1, chains, gpu);
    if (chain.n_ops() < 2) {  // an op alone has a kernel of its own
      with_chains.push_back(std::move(ops[first++]));
      continue;
    }
    if (is_present) allow_shared(chain.kernel().function, shared_limit(gpu.compute_capability));
    const auto begin = std::make_move_iterator(ops.begin() + static_cast<ptrdiff_t>(first));
    const size_t n = chain.n_ops();
    with_chains.push_back(std::make_unique<CompiledChain>(
        std::vector<CompiledOpPtr>(begin, begin + static_cast<ptrdiff_t>(n)), chain, gpu));
    first += n;
  }
  return with_chains;
}

}  // namespace tandem::cuda
