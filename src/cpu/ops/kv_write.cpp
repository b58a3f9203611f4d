// kv_write: stores every token's keys and values into its slot, converted to the cache's dtypes; those of grouped dtypes
// into their open block, as F16. Reads n * Hkv * (hd_k + hd_v) floats, writes as many elements of the cache; keys once more for
// each further set of them.
#include "cpu/ops/rows.h"
#include "device/kv_index.h"
#include "gguf/kivi.h"

namespace tandem::cpu {
namespace {

class CompiledKvWrite final : public CompiledOp {
 public:
  CompiledKvWrite(const CompileContext& context, const Node& node, const KvWriteOp& op)
      : store_row_(context.kernels.attention.store_row),
        kv_(context.segment.kv[node.layer]),
        index_(kv_),
        k_(context.address<const float>(op.k)),
        v_(context.address<const float>(op.v)),
        slots_(context.address<const int32_t>(op.slots)),
        k_row_bytes_(row_bytes(kv_.k_dtype, kv_.head_dim_k)),
        v_row_bytes_(row_bytes(kv_.v_dtype, kv_.head_dim_v)),
        has_values_(op.v != kNoTensor) {
    TANDEM_CHECK(context.tensor(op.k).n_cols == kv_.n_head_k() * kv_.head_dim_k);
    TANDEM_CHECK((has_values_ ? context.tensor(op.v).n_cols : 0) == kv_.n_head_kv * kv_.head_dim_v);
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t elements = kv_.n_head_k() * kv_.head_dim_k + kv_.n_head_kv * kv_.head_dim_v;
    for_each_row(worker, context.shape.n_tokens, elements, [&](int64_t token) { store(token); });
    if (!kv_.indexed) return;
    // A block's values are indexed when all of them are there.
    worker.for_each(context.shape.n_tokens, [&](int64_t token) {
      if (slots_[token] % kv_.block_size == kv_.block_size - 1)
        index_values(kv_, index_, slots_[token] / kv_.block_size);
    });
  }

 private:
  void store(int64_t token) const {
    const int64_t block = slots_[token] / kv_.block_size, offset = slots_[token] % kv_.block_size;
    const auto store_half = [&](DType dtype, const float* x, std::byte* pool, size_t n_row,
                                std::byte* open_pool, int64_t n_head, int64_t n) {
      x += token * n_head * n;
      for (int64_t head = 0; head < n_head; ++head, x += n) {
        const auto row_in = [&](int64_t b) {
          return static_cast<size_t>((b * n_head + head) * kv_.block_size + offset);
        };
        if (is_kivi(dtype)) {
          store_row_(DType::F16, x, open_pool + row_in(kv_.open_of[block]) * row_bytes(DType::F16, n), n);
        } else {
          store_row_(dtype, x, pool + row_in(block) * n_row, n);
        }
      }
    };
    store_half(kv_.k_dtype, k_, kv_.k, k_row_bytes_, kv_.k_open, kv_.n_head_k(), kv_.head_dim_k);
    for (int64_t head = 0; kv_.indexed && head < kv_.n_head_kv; ++head)
      index_key(kv_, index_, slots_[token], head);
    if (has_values_)
      store_half(kv_.v_dtype, v_, kv_.v, v_row_bytes_, kv_.v_open, kv_.n_head_kv, kv_.head_dim_v);
  }

  decltype(AttentionKernels::store_row) store_row_;
  KvLayer kv_;
  KvIndex index_;         // of an indexed cache
  const float* k_;        // [n_tokens, n_head_k * head_dim_k]
  const float* v_;        // [n_tokens, n_head_kv * head_dim_v] or null
  const int32_t* slots_;  // [n_tokens]
  size_t k_row_bytes_, v_row_bytes_;
  bool has_values_;  // false: they are in the keys
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const KvWriteOp& op) {
  return std::make_unique<CompiledKvWrite>(context, node, op);
}

}  // namespace tandem::cpu
