// moe_ffn: runs every token through the few experts that it is routed to. The (token, expert) pairs are
// sorted by expert, so each chosen expert's weights are read once for all its tokens, and other experts' not
// at all:
//   1. group the pairs by expert;
//   2. gather and encode x for each group;
//   3. gate and up of each (expert, strip), combined into h; or up alone, of experts without gates;
//   4. encode h for each group;
//   5. down of each (expert, strip) into z;
//   6. y = residual + sum of weight * z, pair by pair.
// Each phase ends with a barrier. Cost: the chosen experts' weights once; 3 * 2 * m * k operations per pair.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/compiled_op.h"
#include "cpu/ops/linear_group.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kStripRows = 64;  // rows of an expert's matrix in one item of work

// One of the three weights: a matrix per expert.
struct Experts {
  DType dtype;
  const std::byte* w;  // [n_expert, mat_rows, k]; its rows are m of an expert's mat_rows
  const float* bias;   // [n_expert, m] or null
  int64_t m, k, mat_rows;

  LinearCall call(int64_t expert, int64_t n, int64_t row0, int64_t rows) const {
    LinearCall c;
    c.dtype = dtype;
    c.w = w + row_bytes(dtype, k) * static_cast<size_t>(expert * mat_rows + row0);
    if (bias) c.bias = bias + expert * m + row0;
    c.n = n;
    c.m = rows;
    c.k = k;
    return c;
  }
};

Experts experts(const CompileContext& context, TensorId id, TensorId bias) {
  const Weight& w = *context.tensor(id).weight;
  return {w.dtype, context.address<std::byte>(id), context.address(bias), w.n_rows, w.n_cols, w.n_rows};
}

const Weight* weight_of(const CompileContext& context, TensorId id) {
  return id == kNoTensor ? nullptr : context.tensor(id).weight;
}

// Some rows of each expert's matrix.
Experts rows_of(Experts e, int64_t first, int64_t n) {
  e.w += row_bytes(e.dtype, e.k) * static_cast<size_t>(first);
  e.m = n;
  return e;
}

// The pairs of one expert: [begin, begin + n) in the sorted order.
struct Group {
  int32_t expert;
  int32_t begin, n;
};

class CompiledMoeFfn final : public CompiledOp {
 public:
  CompiledMoeFfn(const CompileContext& context, const Node& node, const MoeFfnOp& op)
      : op_(op),
        kernels_(context.kernels),
        has_gate_(op.gate != kNoTensor),
        gate_(has_gate_ ? experts(context, op.gate, op.gate_bias) : experts(context, op.up, op.up_bias)),
        up_(op.up == kNoTensor ? gate_ : experts(context, op.up, op.up_bias)),
        down_(experts(context, op.down, op.down_bias)),
        x_(context.address(op.x)),
        route_(context.address(op.route)),
        residual_(context.address(op.residual)),
        y_(context.address(node.output)),
        extent_(context.tensor(node.output).extent),
        weights_{weight_of(context, op.gate), weight_of(context, op.up), context.tensor(op.down).weight} {
    if (op.up == kNoTensor) {  // in one matrix with the gate
      gate_ = rows_of(gate_, 0, down_.k);
      up_ = rows_of(up_, down_.k, down_.k);
    }
    const int64_t max_tokens = context.tensor(node.output).n_rows;
    max_slots_ = max_tokens * op_.n_used;
    const LinearKernels& k = kernels_.linear;
    for (const Experts* e : {&gate_, &up_, &down_}) {
      multiply_bytes_ = std::max(multiply_bytes_, max_scratch_bytes(k, e->dtype, max_tokens, e->k));
      encoded_bytes_ = std::max(encoded_bytes_, encoded_bound(*e, max_tokens));
    }
    shared_bytes = align64(static_cast<size_t>(op_.n_expert + 1) * sizeof(Group)) +
                   align64(static_cast<size_t>(max_slots_) * sizeof(int32_t) * 2) + 2 * encoded_bytes_ +
                   align64(static_cast<size_t>(max_slots_ * gate_.m) * sizeof(float)) +
                   align64(static_cast<size_t>(max_slots_ * down_.m) * sizeof(float));
    const size_t strips = 2 * sizeof(float) * static_cast<size_t>(max_tokens * kStripRows);
    scratch_bytes = multiply_bytes_ + std::max(strips, gather_bytes(max_tokens));
  }

  void observe(const ProductObserver& observer, const RunContext& context) const override {
    if (row_count(extent_, 1, context.shape) == 0) return;
    const Room room = lay_out(context.shared);
    for (const Group* g = room.groups; g->n > 0; ++g) {
      for (const Weight* w : {weights_[0], weights_[1]}) {
        if (w) observer({*w, g->expert, x_, room.token_of + g->begin, g->n});
      }
      observer({*weights_[2], g->expert, room.h + g->begin * down_.k, nullptr, g->n});
    }
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(extent_, 1, context.shape);
    if (n == 0) return;
    const Room room = lay_out(context.shared);
    if (worker.index() == 0) group_slots(n, room);
    worker.barrier();
    const Group* end = room.groups;
    while (end->n > 0) ++end;
    const std::span<const Group> groups(room.groups, end);

    encode(worker, groups, gate_.dtype, room, context.scratch, room.encoded, true);
    const bool shared_encoding = same_for_all(groups);
    if (!shared_encoding) encode(worker, groups, up_.dtype, room, context.scratch, room.encoded_up, true);
    combine_gate_and_up(worker, groups, room, shared_encoding ? room.encoded : room.encoded_up,
                        context.scratch);
    encode(worker, groups, down_.dtype, room, context.scratch, room.encoded, false);
    multiply_down(worker, groups, room, context.scratch);
    sum_up(worker, n, room);
  }

 private:
  // The op's shared scratch.
  struct Room {
    Group* groups;       // [n_expert + 1], terminated by one with n == 0
    int32_t* token_of;   // [slots] in sorted order
    int32_t* sorted_at;  // [n, n_used] sorted place of each of a token's pairs
    std::byte* encoded;  // groups one after the other
    std::byte* encoded_up;
    float* h;  // [slots, gate.m]
    float* z;  // [slots, down.m]
  };

  Room lay_out(std::byte* p) const {
    const auto take = [&p](size_t bytes) {
      std::byte* at = p;
      p += align64(bytes);
      return at;
    };
    Room r;
    r.groups = reinterpret_cast<Group*>(take(static_cast<size_t>(op_.n_expert + 1) * sizeof(Group)));
    r.token_of = reinterpret_cast<int32_t*>(take(static_cast<size_t>(max_slots_) * sizeof(int32_t) * 2));
    r.sorted_at = r.token_of + max_slots_;
    r.encoded = take(encoded_bytes_);
    r.encoded_up = take(encoded_bytes_);
    r.h = reinterpret_cast<float*>(take(static_cast<size_t>(max_slots_ * gate_.m) * sizeof(float)));
    r.z = reinterpret_cast<float*>(take(static_cast<size_t>(max_slots_ * down_.m) * sizeof(float)));
    return r;
  }

  // Maximum bytes of the encodings of any grouping: each group starts on its own cache line and may round up.
  size_t encoded_bound(const Experts& e, int64_t max_tokens) const {
    size_t per_token = 0;
    for (int64_t n = 1; n <= max_tokens; ++n) {
      per_token = std::max(
          per_token, align64(kernels_.linear.encoded_bytes(e.dtype, n, e.k)) / static_cast<size_t>(n) + 1);
    }
    return align64(per_token * static_cast<size_t>(max_slots_));
  }

  size_t gather_bytes(int64_t max_tokens) const {
    int64_t most = 0;
    for (int64_t n = 1; n <= max_tokens; ++n) {
      for (const Experts* e : {&gate_, &up_}) {
        most = std::max(most, kernels_.linear.encode_granularity(e->dtype, n));
      }
    }
    return static_cast<size_t>(most * gate_.k) * sizeof(float);
  }

  void group_slots(int64_t n, const Room& room) const {
    const int64_t n_slots = n * op_.n_used;
    const auto expert_of = [&](int64_t slot) {
      return std::bit_cast<int32_t>(route_[slot / op_.n_used * 2 * op_.n_used + slot % op_.n_used]);
    };
    // Counting sort. The groups array first holds a count per expert.
    for (int64_t e = 0; e <= op_.n_expert; ++e) room.groups[e] = {static_cast<int32_t>(e), 0, 0};
    for (int64_t s = 0; s < n_slots; ++s) ++room.groups[expert_of(s)].n;
    int32_t begin = 0;
    for (int64_t e = 0; e < op_.n_expert; ++e) {
      room.groups[e].begin = begin;
      begin += room.groups[e].n;
      room.groups[e].n = 0;
    }
    for (int64_t s = 0; s < n_slots; ++s) {
      Group& g = room.groups[expert_of(s)];
      const int32_t at = g.begin + g.n++;
      room.token_of[at] = static_cast<int32_t>(s / op_.n_used);
      room.sorted_at[s] = at;
    }
    Group* to = room.groups;  // only experts with tokens
    for (int64_t e = 0; e < op_.n_expert; ++e) {
      if (room.groups[e].n > 0) *to++ = room.groups[e];
    }
    *to = {0, 0, 0};
  }

  bool same_for_all(std::span<const Group> groups) const {
    return std::all_of(groups.begin(), groups.end(), [&](const Group& g) {
      return kernels_.linear.same_encoding(gate_.dtype, up_.dtype, g.n);
    });
  }

  // Returns where the encoding of a group starts.
  const std::byte* encoding(std::span<const Group> groups, size_t index, DType dtype, int64_t k,
                            const std::byte* encoded) const {
    for (size_t i = 0; i < index; ++i)
      encoded += align64(kernels_.linear.encoded_bytes(dtype, groups[i].n, k));
    return encoded;
  }

  // Encodes the groups' rows: those of x are gathered, those of h are already in order.
  void encode(Worker& worker, std::span<const Group> groups, DType dtype, const Room& room,
              std::byte* scratch, std::byte* encoded, bool of_x) const {
    const LinearKernels& kernels = kernels_.linear;
    const int64_t k = of_x ? gate_.k : down_.k;
    int64_t n_items = 0;
    for (const Group& g : groups) n_items += chunks(dtype, g);
    worker.for_each(n_items, [&](int64_t item) {
      size_t index = 0;
      while (item >= chunks(dtype, groups[index])) item -= chunks(dtype, groups[index++]);
      const Group& g = groups[index];
      const int64_t step = kernels.encode_granularity(dtype, g.n);
      const int64_t first = item * step, last = std::min<int64_t>(first + step, g.n);
      const float* rows = room.h + (g.begin + first) * k;
      if (of_x) {
        float* gathered = reinterpret_cast<float*>(scratch + multiply_bytes_);
        for (int64_t t = first; t < last; ++t) {
          memcpy(gathered + (t - first) * k, x_ + room.token_of[g.begin + t] * k,
                 static_cast<size_t>(k) * sizeof(float));
        }
        rows = gathered;
      }
      auto* to = const_cast<std::byte*>(encoding(groups, index, dtype, k, encoded));
      kernels.encode(dtype, rows - first * k, k, g.n, k, first, last, to);
    });
  }

  int64_t chunks(DType dtype, const Group& g) const {
    const int64_t step = kernels_.linear.encode_granularity(dtype, g.n);
    return (g.n + step - 1) / step;
  }

  // Calls fn(group index, first row, rows) for every strip of every group's m rows.
  template <class Fn>
  void for_each_strip(Worker& worker, std::span<const Group> groups, int64_t m, Fn fn) const {
    const int64_t strips = (m + kStripRows - 1) / kStripRows;
    worker.for_each(static_cast<int64_t>(groups.size()) * strips, [&](int64_t item) {
      const int64_t row0 = item % strips * kStripRows;
      fn(static_cast<size_t>(item / strips), row0, std::min(kStripRows, m - row0));
    });
  }

  void combine_gate_and_up(Worker& worker, std::span<const Group> groups, const Room& room,
                           const std::byte* encoded_up, std::byte* scratch) const {
    float* gate = reinterpret_cast<float*>(scratch + multiply_bytes_);
    for_each_strip(worker, groups, gate_.m, [&](size_t index, int64_t row0, int64_t rows) {
      const Group& g = groups[index];
      float* up = gate + g.n * kStripRows;
      const auto product = [&](const Experts& e, const std::byte* encoded, float* to) {
        LinearCall call = e.call(g.expert, g.n, row0, rows);
        call.x = encoding(groups, index, e.dtype, e.k, encoded);
        call.y = to;
        call.ldy = kStripRows;
        kernels_.linear.multiply(call, 0, rows, scratch);
      };
      product(up_, encoded_up, up);
      if (has_gate_) product(gate_, room.encoded, gate);
      for (int64_t t = 0; t < g.n; ++t) {
        float* h = room.h + (g.begin + t) * gate_.m + row0;
        const float* of_token = up + t * kStripRows;
        if (has_gate_) {
          kernels_.rows.glu(op_.activation, gate + t * kStripRows, of_token, h, rows);
        } else {  // the square of what is positive
          kernels_.rows.gate(GateKind::relu, of_token, of_token, h, rows);
        }
      }
    });
  }

  void multiply_down(Worker& worker, std::span<const Group> groups, const Room& room,
                     std::byte* scratch) const {
    for_each_strip(worker, groups, down_.m, [&](size_t index, int64_t row0, int64_t rows) {
      const Group& g = groups[index];
      LinearCall call = down_.call(g.expert, g.n, row0, rows);
      call.x = encoding(groups, index, down_.dtype, down_.k, room.encoded);
      call.y = room.z + g.begin * down_.m + row0;
      call.ldy = down_.m;
      kernels_.linear.multiply(call, 0, rows, scratch);
    });
  }

  void sum_up(Worker& worker, int64_t n, const Room& room) const {
    const int64_t m = down_.m;
    worker.for_each(n, [&](int64_t token) {
      float* y = y_ + token * m;
      if (residual_) {
        if (residual_ != y_) memcpy(y, residual_ + token * m, static_cast<size_t>(m) * sizeof(float));
      } else {
        std::fill_n(y, m, 0.0f);
      }
      const float* weights = route_ + token * 2 * op_.n_used + op_.n_used;
      for (int64_t i = 0; i < op_.n_used; ++i) {
        const float* z = room.z + room.sorted_at[token * op_.n_used + i] * m;
        for (int64_t j = 0; j < m; ++j) y[j] += weights[i] * z[j];
      }
    });
  }

  MoeFfnOp op_;
  const Kernels& kernels_;
  bool has_gate_;
  Experts gate_, up_, down_;  // gate_ is up_ if there are none
  const float* x_;            // [n, k]
  const float* route_;        // [n, 2 * n_used]
  const float* residual_;     // [n, k] or null
  float* y_;                  // [n, k]
  Extent extent_;
  const Weight* weights_[3];  // gate or null, up or null, down
  int64_t max_slots_ = 0;
  size_t multiply_bytes_ = 0, encoded_bytes_ = 0;
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeFfnOp& op) {
  return std::make_unique<CompiledMoeFfn>(context, node, op);
}

}  // namespace tandem::cpu
