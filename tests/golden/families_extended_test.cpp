// Every architecture with SelfExtend: the same logits in any steps, and others than without it. Those without rotated keys over all
// positions, and with latent attention, are refused: one sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "gguf/quants.h"
#include "support/family_model.h"

namespace tandem {
namespace {

class FamiliesExtended : public testing::TestWithParam<std::string> {
 protected:
  static constexpr SelfExtend kExtend{3, 9};

  void SetUp() override {
    family_ = test::load_family(GetParam());
    path_ = test::convert_family(family_, folder_);
    ids_ = family_.ids();
    const std::vector<int32_t> ids = ids_;
    while (ids_.size() < 75) ids_.push_back(ids[ids_.size() * 5 % ids.size()]);
  }
  std::unique_ptr<Model> load(const SelfExtend& extend) const {
    ModelOptions o;
    o.path = path_;
    o.rope.self_extend = extend;
    return Model::load(o);
  }
  EngineOptions options(int64_t n_ubatch) const {
    EngineOptions o;
    o.context.n_ctx = family_.n_ctx() ? family_.n_ctx() : 128;
    o.context.n_ubatch = n_ubatch;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = DType::F32;
    o.context.all_logits = true;
    return o;
  }
  std::vector<float> logits(const Model& model, int64_t n_ubatch) const {
    Session session(model, {host_.get()}, options(n_ubatch));
    std::vector<float> all;
    session.evaluate(ids_, [&](int64_t, int64_t, std::span<const float> rows) {
      all.insert(all.end(), rows.begin(), rows.end());
    });
    return all;
  }
  static double difference(const std::vector<float>& a, const std::vector<float>& b) {
    double most = 0;
    for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
    return most;
  }
  // Keys of a set in a layer, [n_tokens, n_head_kv * head_dim].
  static std::vector<float> keys(const Session& session, size_t layer, size_t set) {
    const KvLayer shape = kv_layer_shape(session.kv_config(), layer);
    const auto n = static_cast<size_t>(session.n_cached()),
               width = static_cast<size_t>(shape.n_head_kv * shape.head_dim_k),
               n_row = width * static_cast<size_t>(shape.n_key_sets);
    std::vector<float> rows(n * n_row), one(n * width);
    session.read_kv(layer, KvHalf::keys, reinterpret_cast<std::byte*>(rows.data()));
    for (size_t t = 0; t < n; ++t)
      std::copy_n(rows.begin() + static_cast<int64_t>(t * n_row + set * width), width,
                  one.begin() + static_cast<int64_t>(t * width));
    return one;
  }

  test::Family family_;
  test::TempDir folder_;
  std::string path_;
  std::vector<int32_t> ids_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
};

TEST_P(FamiliesExtended, TheSameInAnySteps) {
  const auto plain = load({});
  std::vector<KvShape> shapes;
  for (int i = 0; i < plain->hparams().n_layer; ++i) shapes.push_back(plain->architecture().kv_shape(i));
  std::unique_ptr<Model> model;
  try {
    model = load(kExtend);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    const std::string why = e.message();
    const bool is_latent =
        std::ranges::any_of(shapes, [](const KvShape& s) { return s.has_rows() && !s.has_heads(); });
    if (is_latent) {
      EXPECT_THAT(why, testing::HasSubstr("latent attention"));
    } else {
      EXPECT_THAT(why, testing::AnyOf(testing::HasSubstr("no layer of this model"),
                                      testing::HasSubstr("scales its queries")));
    }
    printf("refused: %s\n", why.c_str());
    return;
  }
  const std::vector<float> whole = logits(*model, 128), without = logits(*plain, 128);
  for (const int64_t n_ubatch : {1, 11}) {
    const double rounding =
        difference(without, logits(*plain, n_ubatch));  // of weights that are quantized in the model
    EXPECT_LT(difference(whole, logits(*model, n_ubatch)), 3 * rounding + 5e-4) << "-ub " << n_ubatch;
  }
  EXPECT_GT(difference(whole, without), 2e-3);
  const auto n_same = static_cast<size_t>(kExtend.neighbours * plain->hparams().n_vocab);
  const std::vector<float> begin(whole.begin(), whole.begin() + static_cast<int64_t>(n_same)),
      begin_without(without.begin(), without.begin() + static_cast<int64_t>(n_same));
  EXPECT_LT(difference(begin, begin_without), 2e-4) << "neighbours are where they were";
}

// Of a token that comes again and again, the first layer's key of a group is the one of the position that the group has.
TEST_P(FamiliesExtended, KeysOfGroupsAreThoseOfTheirPositions) {
  std::unique_ptr<Model> model;
  try {
    model = load(kExtend);
  } catch (const Error&) {
    return;
  }
  Session session(*model, {host_.get()}, options(16));
  session.append(std::vector<int32_t>(70, ids_[0]));
  if (session.kv_config().layers[0].n_key_sets != 2) return;
  const std::vector<float> own = keys(session, 0, 0), groups = keys(session, 0, 1);
  const size_t width = own.size() / 70;
  for (size_t p = 0; p < 70; ++p) {
    for (size_t i = 0; i < width; ++i)
      ASSERT_NEAR(groups[p * width + i], own[p / 3 * width + i], 1e-5) << "position " << p;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesExtended, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
