// Needles in a haystack of 512 tokens and more: the share of values that a model recalls of key-value pairs, by type of the cache, by
// what is read of it, and by the scaling of positions, on the CPU and on a second device. The model recalls by construction
// (support/recall_model.h), so what is missing has been lost in the cache.
#include "support/recall_model.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "plan/kv_formats.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

class Recall : public test::SplitRig {
 protected:
  void SetUp() override { model_ = load_scaled({}); }

  std::unique_ptr<Model> load_scaled(const RopeOverrides& rope,
                                     test::Distance distance = test::Distance::ignored) {
    const std::string path = directory_.path("recall.gguf");
    test::recall_model(512, distance).write(path);
    return Model::load(ModelOptions{.path = path, .rope = rope});
  }

  // A text of about n tokens, half of it queries.
  static EngineOptions options(int64_t n, DType k = DType::F16, DType v = DType::F16) {
    EngineOptions o;
    o.context.n_ctx = n;
    o.context.n_ubatch = 512;
    o.context.k_dtype = k;
    o.context.v_dtype = v;
    o.oom_ladder = false;
    return o;
  }
  double recalled(const Model& model, const std::vector<Device*>& devices, const EngineOptions& o) const {
    const test::RecallText text = test::recall_text((o.context.n_ctx - 1) / 4, 11);
    Session session(model, devices, o);
    session.append(text.pairs);
    int64_t n_right = 0, n_all = 0;
    for (size_t i = 0; i < text.queries.size(); ++i) {
      const std::span<const float> row = session.append(std::span(text.queries).subspan(i, 1));
      if (i % 2 == 1) continue;  // a value, behind which any key may come
      n_right += std::ranges::max_element(row) - row.begin() == text.queries[i + 1];
      ++n_all;
    }
    return static_cast<double>(n_right) / static_cast<double>(n_all);
  }
  double recalled(const EngineOptions& o) const { return recalled(*model_, {host_.get()}, o); }

  static void print(const std::string& what, double share) {
    printf("%-28s %5.1f%%\n", what.c_str(), 100 * share);
  }

  std::unique_ptr<Model> model_;
};

struct TypeCase {
  DType k, v;
  Toggle rotate;
  double least;
};
const std::vector<TypeCase> kTypes = {
    {DType::F32, DType::F32, Toggle::off, 1},        {DType::F16, DType::F16, Toggle::off, 1},
    {DType::BF16, DType::BF16, Toggle::off, 1},      {DType::Q8_0, DType::Q8_0, Toggle::off, 1},
    {DType::Q5_1, DType::Q5_1, Toggle::off, 0.9},    {DType::Q5_0, DType::Q5_0, Toggle::off, 0.9},
    {DType::Q4_1, DType::Q4_1, Toggle::off, 0.9},    {DType::IQ4_NL, DType::IQ4_NL, Toggle::off, 0.9},
    {DType::Q4_0, DType::Q4_0, Toggle::off, 0.9},    {DType::Q4_0, DType::Q4_0, Toggle::on, 0.9},
    {DType::IQ4_NL, DType::IQ4_NL, Toggle::on, 0.9}, {DType::Q8_0, DType::Q4_0, Toggle::off, 0.9},
};

TEST_F(Recall, EveryTypeOfTheCache) {
  for (const TypeCase& c : kTypes) {
    EngineOptions o = options(512, c.k, c.v);
    o.context.kv_rotate = c.rotate;
    const double share = recalled(o);
    const std::string name = std::string(dtype_name(c.k)) + "/" + std::string(dtype_name(c.v)) +
                             (c.rotate == Toggle::on ? " rotated" : "");
    print(name, share);
    EXPECT_GE(share, c.least) << name;
    test::SimDevice sim({});
    o.offload.n_gpu_layers = 3;
    EXPECT_NEAR(recalled(*model_, {host_.get(), &sim}, o), share, 0.03) << name << " on another device";
  }
}

TEST_F(Recall, FartherBackThanTrained) {
  for (const int64_t n : {1024, 2048}) {
    print(std::to_string(n) + " tokens", recalled(options(n)));
    EXPECT_GE(recalled(options(n)), 0.99);
    EXPECT_GE(recalled(options(n, DType::Q8_0, DType::Q8_0)), 0.99);
  }
}

TEST_F(Recall, CachesThatAreCopiedOrSplit) {
  for (const bool is_split : {false, true}) {
    EngineOptions o = options(512);
    o.offload.n_gpu_layers = 3;
    if (is_split) {
      o.offload.kv_split = 64;
    } else {
      o.offload.kv_prefetched = true;
    }
    test::SimDevice sim({});
    EXPECT_EQ(recalled(*model_, {host_.get(), &sim}, o), 1) << (is_split ? "split" : "prefetched");
  }
}

// The fewer components choose the positions, and the fewer positions are read, the less is found.
TEST_F(Recall, SparseReads) {
  const auto with = [&](int64_t n, int64_t components, int64_t positions) {
    EngineOptions o = options(n);
    o.context.sparse_kv = {components, positions};
    const double share = recalled(o);
    print(std::to_string(n) + " tokens, " + sparse_kv_text(o.context.sparse_kv), share);
    test::SimDevice sim({});
    o.offload.n_gpu_layers = 3;
    o.offload.kv_on_host = Toggle::on;
    EXPECT_NEAR(recalled(*model_, {host_.get(), &sim}, o), share, 0.01) << "computed beside another device";
    return share;
  };
  EXPECT_EQ(with(512, 64, 64), 1);
  EXPECT_GE(with(512, 16, 64), 0.99);
  const double four = with(512, 4, 4), two = with(512, 2, 2), one = with(512, 1, 1);
  EXPECT_GE(four, 0.95);
  EXPECT_LT(two, four);
  EXPECT_LT(one, two);
  EXPECT_LT(one, 0.6);
  EXPECT_GE(with(1024, 16, 64), 0.99);
}

// Linear scaling brings neighbours closer than the first layer tells them apart; YaRN leaves fast turns as they are.
TEST_F(Recall, ScaledPositions) {
  const auto scaled = [&](RopeScaling scaling) {
    RopeOverrides rope;
    rope.scaling = scaling;
    rope.scale = 4.0f;
    const double share = recalled(*load_scaled(rope), {host_.get()}, options(2048));
    print(scaling == RopeScaling::yarn ? "2048 tokens, YaRN" : "2048 tokens, linear", share);
    return share;
  };
  EXPECT_GE(scaled(RopeScaling::yarn), 0.99);
  EXPECT_LT(scaled(RopeScaling::linear), 0.5);
}

// A model that does not know distances beyond 512 tokens. SelfExtend brings what is far within them, and leaves the neighbours, by
// which the first layer tells tokens apart, where they are.
TEST_F(Recall, SelfExtend) {
  const auto with = [&](const char* name, int64_t n, const RopeOverrides& rope) {
    const auto model = load_scaled(rope, test::Distance::trained);
    const double share = recalled(*model, {host_.get()}, options(n));
    print(std::to_string(n) + " tokens, " + name, share);
    test::SimDevice sim({});
    EngineOptions o = options(n);
    o.offload.n_gpu_layers = 3;
    EXPECT_NEAR(recalled(*model, {host_.get(), &sim}, o), share, 0.01) << "on another device";
    return share;
  };
  RopeOverrides extended;
  extended.self_extend = {8, 64};
  EXPECT_EQ(with("neither", 512, {}), 1);
  EXPECT_LT(with("neither", 2048, {}), 0.6);
  EXPECT_GE(with("SelfExtend 8, 64", 512, extended), 0.99);
  EXPECT_GE(with("SelfExtend 8, 64", 2048, extended), 0.99);
}

}  // namespace
}  // namespace tandem
