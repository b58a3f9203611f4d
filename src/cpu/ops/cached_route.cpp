// cached_route: divides the pairs of a route between a device that has some of the experts and the host. One worker does it:
// a step of one token has a few pairs.
#include <bit>

#include "cpu/compiled_op.h"
#include "cpu/ops/scratch_pieces.h"
#include "device/expert_slots.h"

namespace tandem::cpu {
namespace {

class CompiledCachedRoute final : public CompiledOp {
 public:
  CompiledCachedRoute(const CompileContext& context, const Node& node, const CachedRouteOp& op)
      : down_(op.down),
        slots_(context.segment.slots),
        extent_(context.tensor(node.output).extent),
        max_tokens_(context.tensor(node.output).n_rows),
        n_used_(context.tensor(node.output).n_cols / 2),
        route_(context.address(op.route)),
        cached_(context.address(op.cached)),
        x_(context.address(op.x)),
        n_cols_(op.x == kNoTensor ? 0 : context.tensor(op.x).n_cols),
        y_(context.address(node.output)) {
    shared_bytes = Shared(*this, nullptr).bytes;
  }

  void run(Worker& worker, const RunContext& context) const override {
    if (worker.index() == 0) {
      const int64_t n = row_count(extent_, 1, context.shape);
      cached_ ? take_others(n) : take_cached(n, Shared(*this, context.shared));
    }
    worker.barrier();
  }

 private:
  struct Shared {
    int32_t *experts, *slots;  // [pairs]
    size_t bytes;

    Shared(const CompiledCachedRoute& op, std::byte* base) {
      ScratchPieces pieces(base);
      experts = pieces.take<int32_t>(op.max_tokens_ * op.n_used_);
      slots = pieces.take<int32_t>(op.max_tokens_ * op.n_used_);
      bytes = pieces.used();
    }
  };

  void take_cached(int64_t n, const Shared& shared) const {
    const auto n_pairs = static_cast<size_t>(n * n_used_);
    for_each_pair(n, [&](int64_t at, int64_t pair) { shared.experts[pair] = id(route_, at); });
    TANDEM_CHECK(slots_ != nullptr);
    slots_->find({down_, {shared.experts, n_pairs}, x_, n, n_cols_}, {shared.slots, n_pairs});
    for_each_pair(n, [&](int64_t at, int64_t pair) { put(at, shared.slots[pair]); });
  }

  void take_others(int64_t n) const {
    for_each_pair(n, [&](int64_t at, int64_t) { put(at, id(cached_, at) < 0 ? id(route_, at) : -1); });
  }

  // Calls fn(index of its id in a route, its number) for every pair.
  template <class Fn>
  void for_each_pair(int64_t n, Fn fn) const {
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t i = 0; i < n_used_; ++i) fn(t * 2 * n_used_ + i, t * n_used_ + i);
    }
  }

  static int32_t id(const float* route, int64_t at) { return std::bit_cast<int32_t>(route[at]); }
  void put(int64_t at, int32_t id) const {
    y_[at] = std::bit_cast<float>(id);
    y_[at + n_used_] = route_[at + n_used_];
  }

  const Weight* down_;
  ExpertSlots* slots_;  // null when only the scratch size is queried
  Extent extent_;
  int64_t max_tokens_, n_used_;
  const float *route_, *cached_;  // [n, 2 * n_used]; the second may be null
  const float* x_;                // [n, n_cols]; may be null
  int64_t n_cols_;
  float* y_;  // [n, 2 * n_used]
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const CachedRouteOp& op) {
  return std::make_unique<CompiledCachedRoute>(context, node, op);
}

}  // namespace tandem::cpu
