// moe_ffn: runs every token through the few experts that it is routed to.
//
// One token (decode):
//   1. every worker encodes x for itself;
//   2. gate and up of each (expert, strip of rows), combined into h; or up alone, of experts without gates;
//   3. every worker encodes h for itself;
//   4. y = residual + sum of weight * down, strip by strip, all experts in one item.
// Several tokens: the (token, expert) pairs are sorted by expert, so that each chosen expert's weights are read once for
// all its tokens, and other experts' not at all:
//   1. sort the pairs;
//   2. encode x: gathered, for each expert with several tokens; a token that is alone at several experts once for all;
//   3. gate and up of each (expert, strip), combined into h;
//   4. encode h for each expert;
//   5. down of each (expert, strip) into z;
//   6. y = residual + sum of weight * z, pair by pair.
// Experts that are not all in memory come from an ExpertSource: steps 3 to 5 are then repeated for those that are there,
// while it reads the others.
// Each step that workers share ends with a barrier: 2 for one token, 5 or 6 for several. Cost: the chosen experts' weights
// once; 3 * 2 * m * k operations per pair.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cpu/compiled_op.h"
#include "cpu/ops/expert_groups.h"
#include "cpu/ops/linear_group.h"
#include "device/expert_source.h"

namespace tandem::cpu {
namespace {

constexpr int64_t kStripRows = 64;  // rows of an expert's matrix in one item of work, with several tokens
constexpr int64_t kLongStripRows = 256;  // at most, with one token
constexpr int64_t kPrivatePairs =
    256;  // up to so many pairs every worker sorts them itself, for which a barrier is too long

// One of the three weights: a matrix per expert.
struct Experts {
  DType dtype;
  const std::byte* w;  // [n_expert, mat_rows, k]; its rows are m of an expert's mat_rows
  const float* bias;   // [n_expert, m] or null
  int64_t m, k, mat_rows;
  const float* factors = nullptr;  // [n_expert] or null, of the products

  const std::byte* rows_of(int64_t expert) const {
    return w + row_bytes(dtype, k) * static_cast<size_t>(expert * mat_rows);
  }
  // `first`: the expert's rows.
  LinearCall call(const std::byte* first, int64_t expert, int64_t n, int64_t row0, int64_t rows) const {
    LinearCall c;
    c.dtype = dtype;
    c.w = first + row_bytes(dtype, k) * static_cast<size_t>(row0);
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
        weights_{weight_of(context, op.gate), weight_of(context, op.up), context.tensor(op.down).weight},
        source_(context.segment.experts) {
    if (source_ && !source_->has(*weights_[2])) source_ = nullptr;
    if (op.up == kNoTensor) {  // in one matrix with the gate
      gate_ = rows_of(gate_, 0, down_.k);
      up_ = rows_of(up_, down_.k, down_.k);
    }
    gate_.factors = context.address(op.gate_factors);
    max_tokens_ = context.tensor(node.output).n_rows;
    for (const Experts* e : {&gate_, &up_, &down_}) {
      multiply_bytes_ =
          std::max(multiply_bytes_, max_scratch_bytes(kernels_.linear, e->dtype, max_tokens_, e->k));
    }
    x_bytes_ = std::max(encoded_bound(gate_), encoded_bound(up_));
    h_bytes_ = encoded_bound(down_);
    shared_bytes = Shared(*this, nullptr).bytes;
    scratch_bytes = multiply_bytes_ + std::max(OneToken(*this, nullptr).bytes, Private(*this, nullptr).bytes);
  }

  void observe(const ProductObserver& observer, const RunContext& context) const override {
    if (row_count(extent_, 1, context.shape) == 0) return;
    const Shared shared(*this, context.shared);
    for (const ExpertGroup& g : shared.pairs.list()) {
      for (const Weight* w : {weights_[0], weights_[1]}) {
        if (w) observer({*w, g.expert, x_, shared.pairs.token_of + g.begin, g.n});
      }
      observer({*weights_[2], g.expert, shared.h + g.begin * down_.k, nullptr, g.n});
    }
  }

  void run(Worker& worker, const RunContext& context) const override {
    const int64_t n = row_count(extent_, 1, context.shape);
    if (n > 0 && source_) {
      run_from_source(worker, context, n);
    } else if (n == 1) {
      run_one(worker, context);
    } else if (n > 1) {
      run_several(worker, context, n);
    }
  }

 private:
  // The op's shared scratch.
  struct Shared {
    ExpertPairs pairs;
    std::byte *encoded_x, *encoded_h;  // of x for gate and up, and of h
    float* h;              // [pairs, gate.m] in sorted order; with one token in the order of its route
    float* z;              // [pairs, down.m]
    WantedExpert* wanted;  // [groups] of a source,
    std::span<const ReadyExpert>* ready;  // [1] and what it returned last
    size_t bytes;

    Shared(const CompiledMoeFfn& op, std::byte* base) : Shared(op, ScratchPieces(base)) {}

   private:
    Shared(const CompiledMoeFfn& op, ScratchPieces pieces)
        : pairs(pieces, op.op_, op.max_tokens_),
          encoded_x(pieces.take<std::byte>(static_cast<int64_t>(2 * op.x_bytes_))),
          encoded_h(pieces.take<std::byte>(static_cast<int64_t>(op.h_bytes_))),
          h(pieces.take<float>(op.max_tokens_ * op.op_.n_used * op.gate_.m)),
          z(pieces.take<float>(op.max_tokens_ * op.op_.n_used * op.down_.m)),
          wanted(pieces.take<WantedExpert>(op.op_.n_expert)),
          ready(pieces.take<std::span<const ReadyExpert>>(1)),
          bytes(pieces.used()) {}
  };
  // A worker's scratch behind that of products, with several tokens.
  struct Private {
    ExpertPairs pairs;  // of few tokens
    float* rows;        // gathered for an encoding, or of gate and up of a strip
    size_t bytes;

    Private(const CompiledMoeFfn& op, std::byte* base) : Private(op, ScratchPieces(base)) {}

   private:
    Private(const CompiledMoeFfn& op, ScratchPieces pieces)
        : pairs(pieces, op.op_, std::min(op.max_tokens_, kPrivatePairs / op.op_.n_used)),
          rows(pieces.take<float>(std::max(2 * op.max_tokens_ * kStripRows, op.most_gathered()))),
          bytes(pieces.used()) {}
  };
  // The same with one token.
  struct OneToken {
    std::byte *for_gate, *for_up;  // x encoded
    std::byte* h;                  // encoded, n_used times
    float *a, *b;                  // [kLongStripRows] products of a strip
    size_t bytes;

    OneToken(const CompiledMoeFfn& op, std::byte* base) {
      ScratchPieces pieces(base);
      for_gate = pieces.take<std::byte>(op.one_bytes(op.gate_));
      for_up = pieces.take<std::byte>(op.one_bytes(op.up_));
      h = pieces.take<std::byte>(op.op_.n_used * op.one_bytes(op.down_));
      a = pieces.take<float>(kLongStripRows);
      b = pieces.take<float>(kLongStripRows);
      bytes = pieces.used();
    }
  };

  int64_t encoded_bytes(const Experts& e, int64_t n) const {
    return static_cast<int64_t>(align64(kernels_.linear.encoded_bytes(e.dtype, n, e.k)));
  }
  int64_t one_bytes(const Experts& e) const { return encoded_bytes(e, 1); }

  // Maximum bytes of the encodings of any grouping: each group starts on its own cache line and may round up.
  size_t encoded_bound(const Experts& e) const {
    int64_t per_token = 0;
    for_deciding_numbers(max_tokens_,
                         [&](int64_t n) { per_token = std::max(per_token, encoded_bytes(e, n) / n + 1); });
    return align64(static_cast<size_t>(per_token * max_tokens_ * op_.n_used));
  }

  // Floats of the most rows that are encoded at once.
  int64_t most_gathered() const {
    int64_t most = 0;
    for_deciding_numbers(max_tokens_, [&](int64_t n) {
      for (const Experts* e : {&gate_, &up_}) {
        most = std::max(most, std::min(n, kernels_.linear.encode_granularity(e->dtype, n)));
      }
    });
    return most * gate_.k;
  }

  // --- one token

  void run_one(Worker& worker, const RunContext& context) const {
    const LinearKernels& kernels = kernels_.linear;
    const OneToken room(*this, context.scratch + multiply_bytes_);
    const Shared shared(*this, context.shared);
    if (worker.index() == 0) shared.pairs.list_one(op_, route_);  // for observe()
    kernels.encode(gate_.dtype, x_, gate_.k, 1, gate_.k, 0, 1, room.for_gate);
    const bool same = kernels.same_encoding(gate_.dtype, up_.dtype, 1);
    if (!same) kernels.encode(up_.dtype, x_, up_.k, 1, up_.k, 0, 1, room.for_up);

    for_each_long_strip(worker, gate_, op_.n_used, [&](int64_t i, int64_t row0, int64_t rows) {
      if (expert_of(i) < 0) return;
      const auto product = [&](const Experts& e, const std::byte* x, float* to) {
        multiply(e, e.rows_of(expert_of(i)), expert_of(i), 1, row0, rows, x, to, rows, context.scratch);
      };
      product(up_, same ? room.for_gate : room.for_up, room.b);
      if (has_gate_) product(gate_, room.for_gate, room.a);
      activate(room.a, room.b, shared.h + i * gate_.m + row0, rows);
    });

    const std::byte* h = encode_h_of_one(worker, shared, room);
    for_each_long_strip(worker, down_, 1, [&](int64_t, int64_t row0, int64_t rows) {
      start_sum(0, row0, rows);
      for (int64_t i = 0; i < op_.n_used; ++i) {
        if (expert_of(i) < 0) continue;
        multiply(down_, down_.rows_of(expert_of(i)), expert_of(i), 1, row0, rows, h + i * one_bytes(down_),
                 room.a, rows, context.scratch);
        add_to_sum(0, i, room.a, row0, rows);
      }
    });
  }

  int64_t expert_of(int64_t i) const { return std::bit_cast<int32_t>(route_[i]); }

  const std::byte* encode_h_of_one(Worker& worker, const Shared& shared, const OneToken& room) const {
    const auto encode = [&](int64_t i, std::byte* to) {
      if (expert_of(i) < 0) return;
      kernels_.linear.encode(down_.dtype, shared.h + i * down_.k, down_.k, 1, down_.k, 0, 1,
                             to + i * one_bytes(down_));
    };
    if (encodes_privately(op_.n_used, down_.k)) {
      for (int64_t i = 0; i < op_.n_used; ++i) encode(i, room.h);
      return room.h;
    }
    worker.for_each(op_.n_used, [&](int64_t i) { encode(i, shared.encoded_h); });
    return shared.encoded_h;
  }

  // Calls fn(i, first row, rows) for every strip of the e.m rows of each of n matrices.
  template <class Fn>
  void for_each_long_strip(Worker& worker, const Experts& e, int64_t n, Fn fn) const {
    const int64_t rows =
        std::min(kLongStripRows, rows_per_item(kernels_.linear, e.dtype, 1, n * e.m, e.k, worker.count()));
    const int64_t strips = (e.m + rows - 1) / rows;
    worker.for_each(n * strips, [&](int64_t item) {
      const int64_t row0 = item % strips * rows;
      fn(item / strips, row0, std::min(rows, e.m - row0));
    });
  }

  // --- several tokens

  void run_several(Worker& worker, const RunContext& context, int64_t n) const {
    const Shared shared(*this, context.shared);
    const Private own(*this, context.scratch + multiply_bytes_);
    const ExpertPairs& pairs = sort_pairs(worker, n, shared, own);
    encode_x(worker, pairs, shared, own);
    multiply_wave(worker, {pairs, nullptr, *pairs.n_groups}, shared, own, context.scratch);
    sum_up(worker, n, pairs, shared);
  }

  // Worker 0 alone talks to the source. What a failed read leaves out counts as nothing: the step is lost anyway.
  void run_from_source(Worker& worker, const RunContext& context, int64_t n) const {
    const Shared shared(*this, context.shared);
    const Private own(*this, context.scratch + multiply_bytes_);
    const ExpertPairs& pairs = sort_pairs(worker, n, shared, own);
    if (worker.index() == 0) request(pairs, n, shared);
    encode_x(worker, pairs, shared, own);
    for (;;) {
      if (worker.index() == 0) *shared.ready = source_->next();
      worker.barrier();
      const std::span<const ReadyExpert> ready = *shared.ready;
      if (ready.empty()) break;
      multiply_wave(worker, {pairs, ready.data(), static_cast<int64_t>(ready.size())}, shared, own,
                    context.scratch);
    }
    if (source_->failed()) {
      worker.for_each(n, [&](int64_t token) { start_sum(token, 0, down_.m); });
    } else {
      sum_up(worker, n, pairs, shared);
    }
  }

  void request(const ExpertPairs& pairs, int64_t n, const Shared& shared) const {
    const std::span<const ExpertGroup> groups = pairs.list();
    for (size_t i = 0; i < groups.size(); ++i) shared.wanted[i] = {groups[i].expert, groups[i].n};
    source_->request({weights_[2], {shared.wanted, groups.size()}, x_, n, gate_.k});
  }

  // Every worker sorts few pairs itself. Those of worker 0 are for observe() too.
  const ExpertPairs& sort_pairs(Worker& worker, int64_t n, const Shared& shared, const Private& own) const {
    const bool privately = n * op_.n_used <= kPrivatePairs;
    const ExpertPairs& pairs = privately && worker.index() != 0 ? own.pairs : shared.pairs;
    if (privately || worker.index() == 0) {
      pairs.sort(op_, route_, n);
      place_encodings(pairs);
    }
    if (!privately) worker.barrier();
    return pairs;
  }

  // Groups that are computed now: all, or those whose experts a source has brought.
  struct Wave {
    const ExpertPairs& pairs;
    const ReadyExpert* ready;  // [n]; null: the experts of all groups, in memory
    int64_t n;

    const ExpertGroup& group(int64_t i) const {
      return pairs.groups[ready ? static_cast<int64_t>(ready[i].index) : i];
    }
  };

  // Returns the rows of the wave's i-th expert.
  const std::byte* rows_in(const Wave& wave, int64_t i, const Experts& e) const {
    if (!wave.ready) return e.rows_of(wave.group(i).expert);
    const ReadyExpert& ready = wave.ready[i];
    if (&e == &down_) return ready.down;
    if (&e == &gate_) return ready.gate;
    if (ready.up) return ready.up;
    return ready.gate + row_bytes(gate_.dtype, gate_.k) * static_cast<size_t>(gate_.m);  // in one matrix
  }

  void multiply_wave(Worker& worker, const Wave& wave, const Shared& shared, const Private& own,
                     std::byte* scratch) const {
    combine_gate_and_up(worker, wave, shared, own, scratch);
    encode_h(worker, wave, shared);
    multiply_down(worker, wave, shared, scratch);
  }

  int64_t chunks(DType dtype, int64_t n) const {
    const int64_t step = kernels_.linear.encode_granularity(dtype, n);
    return (n + step - 1) / step;
  }

  // Fills in the groups' places, and those of the one behind them.
  void place_encodings(const ExpertPairs& pairs) const {
    const auto advance = [&](EncodingPlace at, const Experts& e, const ExpertGroup& g) {
      return EncodingPlace{at.offset + encoded_bytes(e, g.n), at.first_item + chunks(e.dtype, g.n)};
    };
    EncodingPlace gate{}, up{static_cast<int64_t>(x_bytes_), 0}, down{};
    for (ExpertGroup& g : pairs.list()) {
      g.for_gate = gate;
      g.for_up = up;
      g.for_down = down;
      down = advance(down, down_, g);
      const ExpertGroup* first = g.n == 1 ? pairs.groups + pairs.alone[pairs.token_of[g.begin]] : &g;
      if (first != &g) {
        g.for_gate.offset = first->for_gate.offset;
        g.for_up.offset = first->for_up.offset;
        continue;
      }
      gate = advance(gate, gate_, g);
      if (kernels_.linear.same_encoding(gate_.dtype, up_.dtype, g.n)) {
        g.for_up.offset = g.for_gate.offset;
      } else {
        up = advance(up, up_, g);
      }
    }
    ExpertGroup& end = pairs.groups[*pairs.n_groups];
    end.for_gate = gate;
    end.for_up = up;
    end.for_down = down;
  }

  // Calls fn(group, first token, last token) for every chunk of an encoding.
  template <class Fn>
  void for_each_chunk(const ExpertPairs& pairs, EncodingPlace ExpertGroup::*place, DType dtype, int64_t item,
                      Fn fn) const {
    const ExpertGroup& g = group_of_item(pairs.list(), place, item);
    const int64_t step = kernels_.linear.encode_granularity(dtype, g.n);
    const int64_t first = (item - (g.*place).first_item) * step;
    fn(g, first, std::min<int64_t>(first + step, g.n));
  }

  void encode_x(Worker& worker, const ExpertPairs& pairs, const Shared& shared, const Private& own) const {
    const ExpertGroup& end = pairs.groups[*pairs.n_groups];
    const int64_t n_gate = end.for_gate.first_item;
    worker.for_each(n_gate + end.for_up.first_item, [&](int64_t item) {
      const bool of_gate = item < n_gate;
      const auto place = of_gate ? &ExpertGroup::for_gate : &ExpertGroup::for_up;
      const Experts& e = of_gate ? gate_ : up_;
      for_each_chunk(pairs, place, e.dtype, of_gate ? item : item - n_gate,
                     [&](const ExpertGroup& g, int64_t first, int64_t last) {
                       const int32_t* token_of = pairs.token_of + g.begin;
                       for (int64_t t = first; t < last; ++t) {
                         memcpy(own.rows + (t - first) * e.k, x_ + token_of[t] * e.k,
                                static_cast<size_t>(e.k) * sizeof(float));
                       }
                       kernels_.linear.encode(e.dtype, own.rows - first * e.k, e.k, g.n, e.k, first, last,
                                              shared.encoded_x + (g.*place).offset);
                     });
    });
  }

  void encode_h(Worker& worker, const Wave& wave, const Shared& shared) const {
    const auto encode = [&](const ExpertGroup& g, int64_t first, int64_t last) {
      kernels_.linear.encode(down_.dtype, shared.h + g.begin * down_.k, down_.k, g.n, down_.k, first, last,
                             shared.encoded_h + g.for_down.offset);
    };
    if (!wave.ready) {
      const ExpertPairs& pairs = wave.pairs;
      return worker.for_each(pairs.groups[*pairs.n_groups].for_down.first_item, [&](int64_t item) {
        for_each_chunk(pairs, &ExpertGroup::for_down, down_.dtype, item, encode);
      });
    }
    worker.for_each(wave.n, [&](int64_t i) { encode(wave.group(i), 0, wave.group(i).n); });
  }

  // Calls fn(i, first row, rows) for every strip of the m rows of each group of the wave.
  template <class Fn>
  void for_each_strip(Worker& worker, const Wave& wave, int64_t m, Fn fn) const {
    const int64_t strips = (m + kStripRows - 1) / kStripRows;
    worker.for_each(wave.n * strips, [&](int64_t item) {
      const int64_t row0 = item % strips * kStripRows;
      fn(item / strips, row0, std::min(kStripRows, m - row0));
    });
  }

  void combine_gate_and_up(Worker& worker, const Wave& wave, const Shared& shared, const Private& own,
                           std::byte* scratch) const {
    for_each_strip(worker, wave, gate_.m, [&](int64_t i, int64_t row0, int64_t rows) {
      const ExpertGroup& g = wave.group(i);
      float *gate = own.rows, *up = own.rows + g.n * kStripRows;
      const auto product = [&](const Experts& e, const EncodingPlace& place, float* to) {
        multiply(e, rows_in(wave, i, e), g.expert, g.n, row0, rows, shared.encoded_x + place.offset, to,
                 kStripRows, scratch);
      };
      product(up_, g.for_up, up);
      if (has_gate_) product(gate_, g.for_gate, gate);
      for (int64_t t = 0; t < g.n; ++t) {
        activate(gate + t * kStripRows, up + t * kStripRows, shared.h + (g.begin + t) * gate_.m + row0, rows);
      }
    });
  }

  void multiply_down(Worker& worker, const Wave& wave, const Shared& shared, std::byte* scratch) const {
    for_each_strip(worker, wave, down_.m, [&](int64_t i, int64_t row0, int64_t rows) {
      const ExpertGroup& g = wave.group(i);
      multiply(down_, rows_in(wave, i, down_), g.expert, g.n, row0, rows,
               shared.encoded_h + g.for_down.offset, shared.z + g.begin * down_.m + row0, down_.m, scratch);
    });
  }

  void sum_up(Worker& worker, int64_t n, const ExpertPairs& pairs, const Shared& shared) const {
    // Parts of a token's columns, so that few tokens occupy all workers too.
    const int64_t parts = std::max<int64_t>(1, 4 * worker.count() / n);
    const int64_t columns = (down_.m / parts + 15) / 16 * 16 + 16;
    const int64_t n_parts = (down_.m + columns - 1) / columns;
    worker.for_each(n * n_parts, [&](int64_t item) {
      const int64_t token = item / n_parts, first = item % n_parts * columns;
      const int64_t count = std::min(columns, down_.m - first);
      start_sum(token, first, count);
      for (int64_t i = 0; i < op_.n_used; ++i) {
        const int64_t at = pairs.sorted_at[token * op_.n_used + i];
        if (at >= 0) add_to_sum(token, i, shared.z + at * down_.m + first, first, count);
      }
    });
  }

  // --- both

  // Rows [row0, row0 + rows) of an expert's product with n tokens, into to[n, ld]. `first`: all its rows.
  void multiply(const Experts& e, const std::byte* first, int64_t expert, int64_t n, int64_t row0,
                int64_t rows, const std::byte* x, float* to, int64_t ld, std::byte* scratch) const {
    LinearCall call = e.call(first, expert, n, row0, rows);
    call.x = x;
    call.y = to;
    call.ldy = ld;
    kernels_.linear.multiply(call, 0, rows, scratch);
    if (!e.factors) return;
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t r = 0; r < rows; ++r) to[t * ld + r] *= e.factors[expert];
    }
  }

  void activate(const float* gate, const float* up, float* h, int64_t rows) const {
    if (has_gate_) {
      kernels_.rows.glu(op_.activation, gate, up, h, rows);
    } else {  // the square of what is positive
      kernels_.rows.gate(GateKind::relu, up, up, h, rows);
    }
  }

  void start_sum(int64_t token, int64_t first, int64_t count) const {
    float* y = y_ + token * down_.m + first;
    if (!residual_) {
      std::fill_n(y, count, 0.0f);
    } else if (residual_ != y_) {
      memcpy(y, residual_ + token * down_.m + first, static_cast<size_t>(count) * sizeof(float));
    }
  }

  // Adds what the token's i-th expert returns, times its weight.
  void add_to_sum(int64_t token, int64_t i, const float* z, int64_t first, int64_t count) const {
    float* y = y_ + token * down_.m + first;
    kernels_.rows.add(y, z, route_[token * 2 * op_.n_used + op_.n_used + i], y, count);
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
  ExpertSource* source_;      // of experts that are not all in memory; null: they are
  int64_t max_tokens_ = 0;
  size_t multiply_bytes_ = 0;
  size_t x_bytes_ = 0, h_bytes_ = 0;  // at most, of x encoded for gate or for up, and of h
};

}  // namespace

CompiledOpPtr compile(const CompileContext& context, const Node& node, const MoeFfnOp& op) {
  return std::make_unique<CompiledMoeFfn>(context, node, op);
}

}  // namespace tandem::cpu
