#include "ggml-cuda/chain.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "ggml-cuda/launch.cuh"

namespace tandem::cuda {
namespace {

// A kernel and what it can do.
struct Kind {
  void (*kernel)(ChainArgs);
  bool (*has)(DType);
  int (*input_bytes)(int k);
  int ring_bytes;  // of a block
  std::optional<Encoding> encoding;
};

template <DType... kTypes>
Kind kind_of() {
  using K = ChainKind<kTypes...>;
  Kind kind{chain_kernel<K>, K::has, K::input_bytes, kChainWarps * K::kSlots * K::kSlotBytes, std::nullopt};
  if (!K::kFloats) kind.encoding = K::kEncoding;
  return kind;
}

// The types of whole models, and the mixtures that K types come in.
std::span<const Kind> all_kinds() {
  static const Kind kinds[] = {kind_of<DType::F16>(),
                               kind_of<DType::BF16>(),
                               kind_of<DType::Q8_0>(),
                               kind_of<DType::Q4_0>(),
                               kind_of<DType::Q4_K, DType::Q6_K>(),
                               kind_of<DType::Q5_K, DType::Q6_K>()};
  return kinds;
}

constexpr int kStaticBytes = 1024;  // of shared memory, at most: for sums over a block

// Whether copies of 4 or 16 bytes to shared memory find the rows aligned.
bool has_aligned_rows(const DeviceWeight& w) {
  if (is_plain(w.dtype)) return w.n_pieces != w.k;
  return w.k % (piece_bytes(w.dtype).super % 4 == 0 ? 256 : 512) == 0;
}

bool overlap(const float* a, int64_t n_a, const float* b, int64_t n_b) {
  return a != nullptr && b != nullptr && a < b + n_b && b < a + n_a;
}

// A run of ops as the stages of a chain.
class ChainBuilder {
 public:
  explicit ChainBuilder(const Gpu& gpu) : gpu_(gpu) {
    for (const Kind& kind : all_kinds()) kinds_.push_back(&kind);
  }

  // Returns false if the op cannot be the next of the chain.
  bool add(const CompiledOp& op) {
    const ChainPart* part = op.chain_part();
    if (!part) return false;
    if (const auto* norm = std::get_if<ChainNorm>(&part->work)) {
      if (norm_ || norm->stage.k % kLaneColumns != 0) return false;
      norm_ = norm;
    } else if (!add(std::get<ChainProducts>(part->work))) {
      return false;
    } else {
      n_complete_ = n_ops_ + 1;
    }
    ++n_ops_;
    return true;
  }

  size_t n_ops() const { return n_complete_; }  // without a norm at the end
  const Kind& kind() const { return *kinds_.front(); }
  const ChainArgs& args() const { return args_; }
  const HandedBytes* first_bytes() const { return first_bytes_; }

 private:
  bool add(const ChainProducts& products) {
    const int k = products.targets.front().w.k;
    if (args_.n_stages == kMaxChainStages || products.targets.size() > kMaxMatvecWeights) return false;
    if (norm_ && (norm_->makes != products.reads || norm_->stage.k != k)) return false;
    std::vector<const Kind*> kinds = kinds_;
    for (const MatvecTarget& t : products.targets) {
      if (!has_aligned_rows(t.w)) return false;
      std::erase_if(kinds, [&](const Kind* kind) { return !kind->has(t.w.dtype); });
      // Another block may still read what the norm is made of.
      if (norm_ && overlap(norm_->stage.x, k, t.y, t.w.m)) return false;
    }
    if (norm_ && overlap(norm_->stage.x, k, norm_->stage.normalized, k)) return false;
    std::erase_if(kinds, [&](const Kind* kind) {
      const int n_input = std::max(args_.input_bytes, kind->input_bytes(k));
      return static_cast<size_t>(n_input + kind->ring_bytes + kStaticBytes) > shared_limit(gpu_.compute_capability);
    });
    if (kinds.empty()) return false;
    kinds_ = std::move(kinds);

    ChainStage stage = norm_ ? norm_->stage : ChainStage{};
    if (!norm_) stage.x = products.x;
    stage.k = k;
    stage.is_paired = products.is_paired;
    stage.activation = products.activation;
    for (const MatvecTarget& t : products.targets) {
      MatvecTarget& to = stage.targets[stage.n_targets++] = t;
      if (stage.is_paired) {
        to.first_block = 0;
        stage.n_tasks = t.w.m;
      } else {
        to.first_block = stage.n_tasks;
        stage.n_tasks += (t.w.m + 1) / 2;
      }
    }
    if (args_.n_stages == 0 && !norm_) first_bytes_ = products.bytes;
    args_.stages[args_.n_stages++] = stage;
    args_.input_bytes = std::max(args_.input_bytes, kind().input_bytes(k));
    norm_ = nullptr;
    return true;
  }

  Gpu gpu_;
  std::vector<const Kind*> kinds_;  // those that can do all stages
  ChainArgs args_;
  const ChainNorm* norm_ = nullptr;  // waits for its product
  const HandedBytes* first_bytes_ = nullptr;
  size_t n_ops_ = 0, n_complete_ = 0;
};

// Ops from `first` on make a chain of this many: the bytes that one of them makes for the next are not made in a chain.
bool is_self_contained(std::span<const CompiledOpPtr> ops, size_t first, size_t n) {
  const size_t end = first + n;
  for (size_t i = first; i < end; ++i) {
    const BytesMaker* maker = ops[i]->bytes_maker();
    if (!maker || maker->bytes.slot < 0) continue;
    for (size_t at = end; at < ops.size() && at <= i + 2; ++at) {
      const BytesReader* reader = ops[at]->bytes_reader();
      if (reader && reader->bytes.slot >= 0 && reader->tensor == maker->tensor) return false;
    }
  }
  return true;
}

// Once for all chains of a kind: they may differ in what they need.
void allow_shared(const Kind& kind, const Gpu& gpu) {
  TANDEM_CUDA(cudaFuncSetAttribute(kind.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   static_cast<int>(shared_limit(gpu.compute_capability)) - kStaticBytes));
}

class CompiledChain final : public CompiledOp {
 public:
  CompiledChain(std::vector<CompiledOpPtr> ops, const ChainBuilder& chain, const Gpu& gpu)
      : ops_(std::move(ops)), kind_(chain.kind()), args_(chain.args()), bytes_(chain.first_bytes()), n_blocks_(gpu.n_multiprocessors) {
    for (const CompiledOpPtr& op : ops_) scratch_bytes = std::max(scratch_bytes, op->scratch_bytes);
  }

  void launch(const LaunchContext& context) const override {
    if (context.shape.n_tokens != 1 || context.shape.n_outputs != 1) {
      for (const CompiledOpPtr& op : ops_) op->launch(context);
      return;
    }
    ChainArgs args = args_;
    args.counters = context.counters;
    if (bytes_ && kind_.encoding && bytes_->is_handed(1))
      args.stages[0].encoded = bytes_->at(context, static_cast<int>(*kind_.encoding));
    launch_overlapping(kind_.kernel, static_cast<unsigned>(n_blocks_), kChainThreads, shared_bytes(), context.stream, args);
  }

  bool repeats(const StepShape& shape) const override {
    return std::all_of(ops_.begin(), ops_.end(), [&](const CompiledOpPtr& op) { return op->repeats(shape); });
  }

 private:
  size_t shared_bytes() const { return static_cast<size_t>(args_.input_bytes + kind_.ring_bytes); }

  std::vector<CompiledOpPtr> ops_;  // of other numbers of tokens
  const Kind& kind_;
  ChainArgs args_;
  const HandedBytes* bytes_;
  int n_blocks_;
};

}  // namespace

bool chains_wanted() {
  const char* text = std::getenv("TANDEM_CUDA_CHAINS");
  return text != nullptr && std::strcmp(text, "1") == 0;
}

std::vector<CompiledOpPtr> make_chains(std::vector<CompiledOpPtr> ops, const Gpu& gpu, bool is_present) {
  std::vector<CompiledOpPtr> with_chains;
  for (size_t first = 0; first < ops.size();) {
    ChainBuilder chain(gpu);
    for (size_t i = first; i < ops.size() && chain.add(*ops[i]); ++i) {
    }
    // A product alone has a kernel of its own.
    if (chain.n_ops() < 2 || !is_self_contained(ops, first, chain.n_ops())) {
      with_chains.push_back(std::move(ops[first++]));
      continue;
    }
    if (is_present) allow_shared(chain.kind(), gpu);
    const auto begin = std::make_move_iterator(ops.begin() + static_cast<ptrdiff_t>(first));
    with_chains.push_back(std::make_unique<CompiledChain>(
        std::vector<CompiledOpPtr>(begin, begin + static_cast<ptrdiff_t>(chain.n_ops())), chain, gpu));
    first += chain.n_ops();
  }
  return with_chains;
}

}  // namespace tandem::cuda
