#include "ggml-cuda/chain.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <optional>

#include "ggml-cuda/cache_attention.cuh"
#include "ggml-cuda/launch.cuh"

namespace tandem::cuda {
namespace {

constexpr int kStaticBytes = 4096;  // of a kernel's shared memory, at most

// What a chain does, in order. The ops own what is pointed at.
struct ChainPlan {
  std::vector<ChainWork> order;
  std::vector<ChainStage> products;
  std::vector<const ChainRope*> ropes;
  std::vector<const ChainAttention*> attentions;
  int front_bytes = 0;  // of shared memory
  const HandedBytes* first_bytes = nullptr;  // of the input of the first product
};

// A kernel and what it can do.
struct Kernel {
  const void* function;
  void (*launch)(const ChainPlan& plan, const Kernel& kernel, int n_blocks, const LaunchContext& context);
  bool (*has)(DType);
  int (*input_bytes)(int k);
  int ring_bytes;  // of a block
  std::optional<Encoding> encoding;
  size_t max_products, max_attentions;
  int lanes;  // of attention; 0: none
};

template <class K, class A>
void launch_kernel(const ChainPlan& plan, const Kernel& kernel, int n_blocks, const LaunchContext& context) {
  typename A::Args args{};
  std::copy(plan.products.begin(), plan.products.end(), args.products);
  if (plan.first_bytes && kernel.encoding && plan.first_bytes->is_handed(1))
    args.products[0].encoded = plan.first_bytes->at(context, static_cast<int>(*kernel.encoding));
  if constexpr (A::Args::kMaxAttentions > 0) {
    std::copy(plan.order.begin(), plan.order.end(), args.order);
    for (size_t i = 0; i < plan.ropes.size(); ++i) args.ropes[i] = *plan.ropes[i]->call;
    if (!plan.ropes.empty()) {
      args.rope_table = *plan.ropes[0]->table;
      args.rope_style = plan.ropes[0]->style;
    }
    for (size_t i = 0; i < plan.attentions.size(); ++i) {
      AttentionTensors tensors = *plan.attentions[i]->tensors;
      tensors.made = {};
      args.attentions[i] = plan.attentions[i]->attention->chained(tensors, context);
    }
  }
  args.n_stages = static_cast<int>(plan.order.size());
  args.n_products = static_cast<int>(plan.products.size());
  args.front_bytes = plan.front_bytes;
  args.counters = context.counters + kCounters - 2;
  launch_together(chain_kernel<K, A>, static_cast<unsigned>(n_blocks), kChainThreads,
                  static_cast<size_t>(plan.front_bytes + kernel.ring_bytes), context.stream, args);
}

// Whether the current device has the kernels with attention: code made for it or for an older GPU of its kind (PTX of yet older ones
// has none), and a driver for parameters of more than 4 KB.
[[maybe_unused]] bool has_attention(const Kernel& kernel) {
  int driver = 0;
  TANDEM_CUDA(cudaDriverGetVersion(&driver));
  return driver >= 12010 && can_overlap(kernel.function);
}

template <class K, class A>
Kernel kernel_of(int lanes) {
  Kernel kernel{reinterpret_cast<const void*>(chain_kernel<K, A>),
                launch_kernel<K, A>,
                K::has,
                K::input_bytes,
                kChainWarps * K::kSlots * K::kSlotBytes,
                std::nullopt,
                A::Args::kMaxProducts,
                A::Args::kMaxAttentions,
                lanes};
  if (!K::kFloats) kernel.encoding = K::kEncoding;
  return kernel;
}

template <class K>
void add_with_attention([[maybe_unused]] std::vector<Kernel>& kernels) {
#ifdef TANDEM_CHAINED_ATTENTION
  kernels.push_back(kernel_of<K, DecodeAttention<8>>(8));
  kernels.push_back(kernel_of<K, DecodeAttention<16>>(16));
#endif
}

// The types of whole models, and the mixtures that K types come in; those without attention first.
const std::vector<Kernel>& all_kernels() {
  using K4 = ChainKind<DType::Q4_K, DType::Q6_K>;
  using K5 = ChainKind<DType::Q5_K, DType::Q6_K>;
  static const std::vector<Kernel> all = [] {
    std::vector<Kernel> kernels{kernel_of<ChainKind<DType::F16>, NoAttention>(0),  kernel_of<ChainKind<DType::BF16>, NoAttention>(0),
                                kernel_of<ChainKind<DType::Q8_0>, NoAttention>(0), kernel_of<ChainKind<DType::Q4_0>, NoAttention>(0),
                                kernel_of<K4, NoAttention>(0),                     kernel_of<K5, NoAttention>(0)};
    add_with_attention<ChainKind<DType::F16>>(kernels);
    add_with_attention<ChainKind<DType::Q8_0>>(kernels);
    add_with_attention<ChainKind<DType::Q4_0>>(kernels);
    add_with_attention<K4>(kernels);
    return kernels;
  }();
  return all;
}

// Whether copies of 4 or 16 bytes to shared memory find the rows aligned.
bool has_aligned_rows(const DeviceWeight& w) {
  if (is_plain(w.dtype)) return w.n_pieces != w.k;
  return w.k % (piece_bytes(w.dtype).super % 4 == 0 ? 256 : 512) == 0;
}

bool same(const RopeTable& a, const RopeTable& b) {
  return std::equal(std::begin(a.turns_per_position), std::end(a.turns_per_position), b.turns_per_position) &&
         a.magnitude == b.magnitude && a.temperature_scale == b.temperature_scale && a.temperature_length == b.temperature_length;
}

bool overlap(const float* a, int64_t n_a, const float* b, int64_t n_b) {
  return a != nullptr && b != nullptr && a < b + n_b && b < a + n_a;
}

int shared_bytes_of_attention(const AttentionCall& call) {
  constexpr int heads = kChainHeads;
  const int tiles = WarpMemory(call.k, call.v).size(heads), left = left_floats(heads, call.v.head_dim) * 4;
  const int merge = merge_floats(heads, kMaxSplits, call.v.head_dim) * 4;
  return std::max(kDecodeThreads / kWarp * std::max(tiles, left), (merge + 15) / 16 * 16);
}

// A run of ops as a chain.
class ChainBuilder {
 public:
  ChainBuilder(const Gpu& gpu, bool with_attention) : gpu_(gpu) {
    for (const Kernel& kernel : all_kernels()) {
      if (kernel.lanes == 0 || with_attention) kernels_.push_back(&kernel);
    }
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
    if (!std::visit([&](const auto& work) { return add_work(work); }, part->work)) return false;
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
      return static_cast<size_t>(front + kernel->ring_bytes + kStaticBytes) > shared_limit(gpu_.compute_capability);
    });
    if (kernels.empty()) return false;
    kernels_ = std::move(kernels);
    plan_.front_bytes = std::max(plan_.front_bytes, front_bytes(kernel()));  // the same for all: of one way to read the input
    return true;
  }

  bool add_work(const ChainNorm&) { return false; }
  bool add_work(const ChainRope& rope) {
    if (norm_) return false;
    if (!plan_.ropes.empty()) {
      const ChainRope& other = *plan_.ropes.front();
      if (!same(*rope.table, *other.table) || rope.style != other.style ||
          rope.call->n_pairs != other.call->n_pairs || rope.call->positions != other.call->positions)
        return false;
    }
    if (!keep_kernels([&](const Kernel& k) { return k.max_attentions > plan_.ropes.size(); }, [](const Kernel&) { return 0; }))
      return false;
    plan_.ropes.push_back(&rope);
    plan_.order.push_back(ChainWork::rope_kv);
    return true;
  }
  bool add_work(const ChainAttention& attention) {
    const AttentionCall& call = attention.attention->shape();
    const int columns = std::max(call.k.head_dim, call.v.head_dim);
    const int lanes = columns <= 64 ? 8 : columns <= 128 ? 16 : -1;
    const int n_heads = call.n_head_kv * ((call.group + kChainHeads - 1) / kChainHeads);
    if (norm_ || static_cast<size_t>(n_heads) > kCounters - 2) return false;
    const auto can = [&](const Kernel& k) {
      return k.lanes == lanes && k.max_attentions > plan_.attentions.size();
    };
    if (!keep_kernels(can, [&](const Kernel&) { return shared_bytes_of_attention(call); })) return false;
    plan_.attentions.push_back(&attention);
    plan_.order.push_back(ChainWork::attention);
    return true;
  }
  bool add_work(const ChainProducts& products) {
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
    const size_t n_stages = alone ? 2 : 1;
    const auto can = [&](const Kernel& kernel) {
      return kernel.max_products >= plan_.products.size() + n_stages &&
             std::all_of(products.targets.begin(), products.targets.end(),
                         [&](const MatvecTarget& t) { return kernel.has(t.w.dtype); });
    };
    if (!keep_kernels(can, [&](const Kernel& kernel) { return kernel.input_bytes(k); })) return false;

    if (alone) add_product(norm_->stage);
    ChainStage stage = norm_ && !alone ? norm_->stage : ChainStage{};
    if (!norm_ || alone) stage.x = products.x;
    stage.k = k;
    stage.mode = products.mode;
    stage.activation = products.activation;
    for (const MatvecTarget& t : products.targets) {
      MatvecTarget& to = stage.targets[stage.n_targets++] = t;
      to.first_block = stage.n_tasks;
      if (!is_paired(stage.mode)) stage.n_tasks += n_pairs(stage.mode, t.w.m);
    }
    if (is_paired(stage.mode)) stage.n_tasks = n_pairs(stage.mode, stage.targets[0].w.m);
    if (plan_.order.empty() && !norm_) plan_.first_bytes = products.bytes;
    add_product(stage);
    norm_ = nullptr;
    return true;
  }
  void add_product(const ChainStage& stage) {
    plan_.products.push_back(stage);
    plan_.order.push_back(ChainWork::product);
  }

  Gpu gpu_;
  std::vector<const Kernel*> kernels_;  // those that can do all of it
  ChainPlan plan_;
  const ChainNorm* norm_ = nullptr;  // waits for its product
  size_t n_ops_ = 0, n_complete_ = 0;
};

// The first of `ops`, at most `most`, as far as they make a chain.
ChainBuilder chain_of(std::span<const CompiledOpPtr> ops, size_t most, const Gpu& gpu, bool with_attention) {
  ChainBuilder chain(gpu, with_attention);
  for (size_t i = 0; i < std::min(most, ops.size()) && chain.add(*ops[i]); ++i) {
  }
  return chain;
}

// Whether none of the first n ops makes bytes that one behind them reads: they are not made in a chain.
bool is_self_contained(std::span<const CompiledOpPtr> ops, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const BytesMaker* maker = ops[i]->bytes_maker();
    if (!maker || maker->bytes.slot < 0) continue;
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

bool chains_wanted() {
  const char* text = std::getenv("TANDEM_CUDA_CHAINS");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

std::vector<CompiledOpPtr> make_chains(std::vector<CompiledOpPtr> ops, const Gpu& gpu, bool is_present) {
  const Kernel& last = all_kernels().back();  // one with attention, if there are any
  const bool with_attention = gpu.compute_capability >= 90 && last.lanes != 0 && (!is_present || has_attention(last));
  std::vector<CompiledOpPtr> with_chains;
  for (size_t first = 0; first < ops.size();) {
    const std::span<const CompiledOpPtr> rest = std::span(ops).subspan(first);
    ChainBuilder chain = chain_of(rest, rest.size(), gpu, with_attention);
    while (chain.n_ops() >= 2 && !is_self_contained(rest, chain.n_ops())) chain = chain_of(rest, chain.n_ops() - 1, gpu, with_attention);
    // An op alone has a kernel of its own, and so have rotation and attention.
    if (chain.n_ops() < 2 || chain.plan().products.empty()) {
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
