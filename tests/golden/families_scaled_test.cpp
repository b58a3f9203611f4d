// Every architecture with a factor for each matrix in a tensor of its own, as in files of NVFP4: the logits are those of the
// file without, on one device and divided over two.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "graph/builder.h"
#include "support/family_model.h"
#include "support/tensor_rig.h"
#include "support/tiny_model.h"

namespace tandem {
namespace {

// Those that are products' weights, but not of biased experts.
bool may_have_factor(const std::string& name, const test::TinyTensor& t) {
  if (t.dtype != DType::F32 || t.dims.size() < 2 || !name.ends_with(".weight")) return false;
  for (const char* other : {"conv", "_norm", "attn_k_b", "attn_v_b", "token_types"}) {
    if (name.find(other) != std::string::npos) return false;
  }
  return true;
}

class FamiliesScaled : public test::TensorRig, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    plain_ = test::convert_family(family_, directory_);
    const GgufFile file(plain_);
    test::TinyModel model = test::read_model(file);
    for (const auto& [name, tensor] : test::read_model(file).tensors) {
      if (may_have_factor(name, tensor)) add_factors(model, name);
    }
    scaled_ = directory_.path("scaled.gguf");
    model.write(scaled_);
  }

  // Powers of two, so that what is left of the matrix is exact.
  void add_factors(test::TinyModel& model, const std::string& name) {
    test::TinyTensor& matrix = model.tensors.at(name);
    const int64_t n_mats = matrix.dims.size() > 2 ? matrix.dims[2] : 1;
    const std::string scale = name.substr(0, name.size() - std::string("weight").size()) + "scale";
    if (model.tensors.contains(scale)) return;
    model.add(scale, DType::F32, {n_mats}, 1);
    auto* factors = reinterpret_cast<float*>(model.tensors.at(scale).data.data());
    auto* x = reinterpret_cast<float*>(matrix.data.data());
    const size_t n = matrix.data.size() / sizeof(float) / static_cast<size_t>(n_mats);
    for (int64_t i = 0; i < n_mats; ++i) {
      const bool is_negative = rng_() % 2 && !(n_mats > 1 && squares());
      factors[i] = std::ldexp(is_negative ? -1.0f : 1.0f, static_cast<int>(rng_() % 7) - 3);
      for (size_t j = 0; j < n; ++j) *x++ /= factors[i];
    }
    model.add(name.substr(0, name.size() - std::string("weight").size()) + "input_scale", DType::F32, {n_mats}, 1);
    ++n_scaled_;
  }

  void expect_refusal(const test::TinyModel& model, const std::string& named) const {
    const std::string path = directory_.path("refused.gguf");
    model.write(path);
    try {
      Model::load(path);
      ADD_FAILURE() << "loaded";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find(named), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("refused.gguf"), std::string::npos) << e.what();
    }
  }

  // Whether experts have no gates, and the square of what is positive for their activation.
  bool squares() const { return GetParam().starts_with("nemotron_h_moe"); }

  std::vector<float> logits(const std::string& path, const std::vector<Device*>& devices, const OffloadOptions& flags = {},
                            const Placement& placement = {}) const {
    const auto model = Model::load(path);
    EngineOptions o = test::family_options(family_, GetParam());
    o.placement = placement;
    o.offload = flags;
    Session session(*model, devices, o);
    std::vector<float> all;
    const std::vector<int32_t> ids = family_.ids();
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(std::span(ids).first(ids.size() - 2)));
    for (size_t i = ids.size() - 2; i < ids.size(); ++i) add(session.append(std::span(ids).subspan(i, 1)));
    return all;
  }

  test::Family family_;
  std::string plain_, scaled_;
  std::mt19937 rng_{std::random_device{}()};
  int n_scaled_ = 0;
};

TEST_P(FamiliesScaled, LogitsAreThoseOfTheFileWithout) {
  EXPECT_GT(n_scaled_, 4);
  const std::vector<float> wanted = logits(plain_, {host_.get()});
  EXPECT_LE(apart(logits(scaled_, {host_.get()}), wanted), 1e-4f);
  test::SimMachine machine(*host_, 2);
  EXPECT_LE(apart(logits(scaled_, machine.devices(), divided({1, 1})), wanted), 1e-4f);
}

// Experts on disk, and kept in slots beside the host.
TEST_P(FamiliesScaled, ExpertsElsewhere) {
  const auto model = Model::load(scaled_);
  if (model->hparams().n_expert < 2) GTEST_SKIP() << "no mixture";
  const std::vector<float> wanted = logits(plain_, {host_.get()});
  const auto placed = [&](const std::vector<Device*>& devices, const OffloadChoice& choice) {
    return apart(logits(scaled_, devices, {}, place(model->architecture(), model->weights(), devices, {}, choice)), wanted);
  };
  EXPECT_LE(placed({host_.get()}, {.chosen_experts = true}), 1e-4f);
  test::SimDevice sim({});
  const int64_t n_layer = model->hparams().n_layer;
  const OffloadChoice in_slots{.n_gpu_layers = n_layer + 1, .n_cpu_moe = n_layer, .n_cached_experts = 1, .fetched_experts = 0.5};
  EXPECT_LE(placed({host_.get(), &sim}, in_slots), cpu::best_isa() == cpu::Isa::avx512_amx ? 1e-2f : 1e-4f);
}

class FamiliesWithSquares : public FamiliesScaled {};

TEST_P(FamiliesWithSquares, NegativeScalesAreRefused) {
  const GgufFile file(scaled_);
  test::TinyModel model = test::read_model(file);
  for (auto& [name, tensor] : model.tensors) {
    if (name.ends_with("ffn_up_exps.scale")) *reinterpret_cast<float*>(tensor.data.data()) *= -1.0f;
  }
  expect_refusal(model, "ffn_up_exps");
}

class FamiliesWithLatents : public FamiliesScaled {};

TEST_P(FamiliesWithLatents, ScalesOfHeadsAreRefused) {
  for (const std::string name : {"blk.0.attn_k_b", "blk.0.attn_v_b"}) {
    const GgufFile file(scaled_);
    test::TinyModel model = test::read_model(file);
    model.add(name + ".scale", DType::F32, {model.tensors.at(name + ".weight").dims[2]}, 1);
    expect_refusal(model, name);
  }
}

// A gate whose activation is no op of its own, and a weight that is no product's.
TEST(ScaledMatrices, AreRefusedWhereTheGraphCannotScale) {
  const std::vector<float> floats(32 * 32);
  Weight matrix;
  matrix.name = "blk.0.ffn_gate.weight";
  matrix.n_rows = matrix.n_cols = 32;
  matrix.data = reinterpret_cast<const std::byte*>(floats.data());
  Weight scaled = matrix;
  scaled.factors = {2.0f};
  GraphBuilder g(ShapeClass{});
  const TensorId x = g.embed(&matrix);
  EXPECT_NO_THROW(g.glu(x, Activation::silu, &scaled, &matrix));
  EXPECT_NO_THROW(g.glu(x, Activation::gelu_tanh, &matrix, &scaled));
  EXPECT_THROW(g.glu(x, Activation::gelu, &scaled, &matrix), Error);
  EXPECT_THROW(g.head_linear(x, &scaled), Error);
}

// Of gpt-oss experts have biases, and an activation of their own.
std::vector<std::string> families() {
  std::vector<std::string> names = test::family_names_and_forms();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("gpt_oss"); });
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesScaled, testing::ValuesIn(families()),
                         [](const auto& param_info) { return param_info.param; });

INSTANTIATE_TEST_SUITE_P(All, FamiliesWithLatents, testing::Values("deepseek_v2"),
                         [](const auto& param_info) { return param_info.param; });

INSTANTIATE_TEST_SUITE_P(All, FamiliesWithSquares, testing::Values("nemotron_h_moe", "nemotron_h_moe_wide"),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
