// The ops of recurrent layers on GPUs against the scalar reference: results and states.
#include <cmath>
#include <cstring>

#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

class GpuRecurrent : public GpuTest {
 protected:
  // The tokens of each sequence of a step, and the position of its first one.
  struct Slice {
    int64_t n, position;
  };

  static ShapeClass shape_of(const std::vector<Slice>& slices) {
    ShapeClass shape;
    shape.max_tokens = 0;
    for (const Slice& s : slices) shape.max_tokens += s.n;
    shape.max_outputs = shape.max_tokens;
    shape.max_sequences = static_cast<int64_t>(slices.size());
    return shape;
  }

  // A step may write the slot that it reads, as a later part of one does (exec/parts.h).
  enum class Slots : uint8_t { two, one };
  // Two slots for each sequence, in no order, with random states.
  void set_states(OpCase& c, const std::vector<Slice>& slices, int64_t n_conv, int64_t n_recurrence,
                  Slots used = Slots::two) {
    std::vector<int32_t> sequences, positions, slots(2 * slices.size());
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i);
    random_.shuffle(slots);
    for (size_t s = 0; used == Slots::one && s < slices.size(); ++s) slots[2 * s + 1] = slots[2 * s];
    for (size_t s = 0; s < slices.size(); ++s) {
      for (int64_t i = 0; i < slices[s].n; ++i) {
        sequences.push_back(static_cast<int32_t>(s));
        positions.push_back(static_cast<int32_t>(slices[s].position + i));
      }
    }
    const auto n_slots = static_cast<int64_t>(slots.size());
    c.set_input(Input::sequences, sequences);
    c.set_input(Input::positions, positions);
    c.set_input(Input::states, slots);
    c.set_cache({nullptr, nullptr, DType::F32, DType::F32, 1, n_conv, n_recurrence, 1, n_slots},
                {bytes(random_.normals(n_conv * n_slots)), bytes(random_.normals(n_recurrence * n_slots))});
  }

  static std::vector<std::byte> bytes(const std::vector<float>& x) {
    const auto raw = std::as_bytes(std::span(x));
    return {raw.begin(), raw.end()};
  }
  static std::vector<float> floats(const std::vector<std::byte>& raw) {
    std::vector<float> x(raw.size() / sizeof(float));
    std::memcpy(x.data(), raw.data(), raw.size());
    return x;
  }

  // Weights and inputs are about 1: a result of one channel that is much less has cancelled.
  static constexpr double kLeast = 0.1;

  void expect_match(const OpCase& c, const StepShape& shape) {
    ASSERT_EQ(c.why_unsupported(*device_), "");
    const OpResult got = c.run(*device_, shape).front(), want = c.reference(shape);
    EXPECT_LT(relative_error(got.values, want.values, kLeast), 1e-4);
    EXPECT_LT(relative_error(floats(got.cache.k), floats(want.cache.k)), 1e-5);
    EXPECT_LT(relative_error(floats(got.cache.v), floats(want.cache.v), kLeast), 1e-4);
  }

  const std::vector<std::vector<Slice>> steps_ = {
      {{1, 0}}, {{1, 5}}, {{2, 0}}, {{37, 64}}, {{1, 9}, {1, 0}, {1, 3}}, {{2, 7}, {19, 0}, {1, 1}, {5, 32}}};
  // Steps for chunks: whole windows and parts, several sequences in a window, sequences over several windows.
  const std::vector<std::vector<Slice>> long_steps_ = {{{16, 0}},
                                                       {{64, 0}},
                                                       {{95, 3}},
                                                       {{7, 4}, {1, 0}, {21, 0}, {1, 6}, {40, 32}},
                                                       {{33, 0}, {66, 5}, {30, 0}}};

  std::vector<std::vector<Slice>> all_steps() const {
    std::vector<std::vector<Slice>> steps = steps_;
    steps.insert(steps.end(), long_steps_.begin(), long_steps_.end());
    return steps;
  }
};

TEST_F(GpuRecurrent, CausalConv) {
  for (const std::vector<Slice>& slices : steps_) {
    for (const int64_t n_channels : {1, 100, 128, 389}) {
      for (const int64_t kernel : {2, 4, 9}) {
        SCOPED_TRACE(format("{} channels, kernel {}", n_channels, kernel));
        for (const bool is_plain : {false, true}) {
          const Slots used = is_plain ? Slots::one : Slots::two;
          OpCase c(random_, shape_of(slices));
          const TensorId x = c.activation(n_channels);
          c.builder.set_layer(0);
          c.finish(c.builder.causal_conv(x, c.matrix(DType::F32, n_channels, kernel, 1, 1.0f),
                                         is_plain ? nullptr : c.vector(random_.normals(n_channels)),
                                         is_plain ? ConvActivation::none : ConvActivation::silu));
          set_states(c, slices, (kernel - 1) * n_channels, 4, used);
          expect_match(c, {shape_of(slices).max_tokens, 1});
        }
      }
    }
  }
}

TEST_F(GpuRecurrent, DeltaRule) {
  const std::vector<DeltaRuleParams> sizes = {{1, 1, 1, 1},     {2, 4, 16, 24},
                                              {1, 3, 33, 40},   {2, 6, 64, 32, HeadOrder::tiled},
                                              {2, 2, 128, 128}, {1, 2, 200, 9}};
  for (const std::vector<Slice>& slices : all_steps()) {
    for (const DeltaRuleParams& p : sizes) {
      SCOPED_TRACE(
          format("{} of {}, keys of {}, values of {}", p.n_head_k, p.n_head_v, p.head_dim_k, p.head_dim_v));
      OpCase c(random_, shape_of(slices));
      std::vector<float> decay = random_.normals(p.n_head_v);
      for (float& d : decay) d = -std::exp(2 * d);
      const TensorId qkv = c.activation(p.n_qkv()), beta = c.activation(p.n_head_v),
                     alpha = c.activation(p.n_head_v);
      c.builder.set_layer(0);
      c.finish(
          c.builder.delta_rule(qkv, beta, alpha, p, c.vector(decay), c.vector(random_.normals(p.n_head_v))));
      set_states(c, slices, 4, p.n_head_v * p.head_dim_k * p.head_dim_v,
                 random_.below(2) == 0 ? Slots::one : Slots::two);
      expect_match(c, {shape_of(slices).max_tokens, 1});
    }
  }
}

TEST_F(GpuRecurrent, SsmScan) {
  const std::vector<SsmScanParams> sizes = {{1, 1, 1, 1},    {4, 24, 2, 16}, {3, 40, 1, 33},
                                            {6, 64, 3, 128}, {2, 9, 2, 64},  {2, 64, 1, 200}};
  for (const std::vector<Slice>& slices : all_steps()) {
    for (const SsmScanParams& p : sizes) {
      SCOPED_TRACE(format("{} heads of {}, {} groups of {}", p.n_head, p.head_dim, p.n_group, p.n_state));
      OpCase c(random_, shape_of(slices));
      std::vector<float> decay = random_.normals(p.n_head);
      for (float& d : decay) d = -std::exp(2 * d);
      const TensorId xbc = c.activation(p.n_xbc()), dt = c.activation(p.n_head);
      c.builder.set_layer(0);
      c.finish(c.builder.ssm_scan(
          xbc, dt, p,
          {c.vector(decay), c.vector(random_.normals(p.n_head)), c.vector(random_.normals(p.n_head))}));
      set_states(c, slices, 4, p.n_inner() * p.n_state, random_.below(2) == 0 ? Slots::one : Slots::two);
      expect_match(c, {shape_of(slices).max_tokens, 1});
    }
  }
}

TEST_F(GpuRecurrent, NormsOfGroupsWithWeightsOfTheirOwn) {
  for (const int64_t group : {5, 16, 40, 640}) {
    ShapeClass shape;
    shape.max_tokens = shape.max_outputs = 7;
    OpCase c(random_, shape);
    const TensorId x = c.activation(4 * group);
    c.finish(c.builder.norm(x, {NormKind::rms, 1e-5f, group}, c.matrix(DType::F32, 4, group, 1, 1.0f)));
    c.expect_match(*device_, {7, 1}, kRow);
  }
}

TEST_F(GpuRecurrent, LongStatesStayOnTheHost) {
  OpCase c(random_, shape_of({{1, 0}}));
  const SsmScanParams p{1, 1, 1, 257};
  const TensorId xbc = c.activation(p.n_xbc()), dt = c.activation(1);
  c.finish(c.builder.ssm_scan(xbc, dt, p, {c.vector({-1.0f}), c.vector({0.0f}), c.vector({1.0f})}));
  if (device_->info().backend == "SIM") GTEST_SKIP() << "the simulated device has the CPU's kernels";
  EXPECT_NE(c.why_unsupported(*device_), "");
}

TEST_F(GpuRecurrent, LongKeysStayOnTheHost) {
  OpCase c(random_, shape_of({{1, 0}}));
  const DeltaRuleParams p{1, 1, 257, 1};
  const TensorId qkv = c.activation(p.n_qkv()), one = c.activation(1);
  c.finish(c.builder.delta_rule(qkv, one, one, p, c.vector({-1.0f}), c.vector({0.0f})));
  if (device_->info().backend == "SIM") GTEST_SKIP() << "the simulated device has the CPU's kernels";
  EXPECT_NE(c.why_unsupported(*device_), "");
}

TEST_F(GpuRecurrent, ColumnsAndGates) {
  for (const int64_t n : {1, 7, 33}) {
    ShapeClass shape;
    shape.max_tokens = shape.max_outputs = n;
    OpCase columns(random_, shape);
    columns.finish(columns.builder.columns(columns.activation(5 * 37), {37, 5, 13}));
    columns.expect_match(*device_, {n, 1}, 1e-9);
    for (const GateKind kind :
         {GateKind::sigmoid, GateKind::silu, GateKind::gelu_tanh, GateKind::product, GateKind::relu}) {
      OpCase gate(random_, shape);
      const TensorId x = gate.activation(101), by = gate.activation(101, 4.0f);
      gate.finish(gate.builder.gate(x, by, kind));
      gate.expect_match(*device_, {n, 1}, kRow);
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_test
