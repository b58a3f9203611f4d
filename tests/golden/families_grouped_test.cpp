// Every architecture with a cache of grouped types (-ctk kivi4 -ctv kivi4): short texts are those of F16, long ones are near
// them, also after they were cut back, whatever else layers cache.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

class FamiliesGrouped : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    for (int i = 0; i < model_->hparams().n_layer; ++i) {
      const KvShape shape = model_->architecture().kv_shape(i);
      can_ &= !shape.has_rows() ||
              (shape.has_heads() && shape.head_dim_k % 32 == 0 && shape.head_dim_v % 32 == 0);
    }
  }

  EngineOptions options(DType k, DType v) const {
    EngineOptions o;
    o.context.n_ctx = 400;
    o.context.n_ubatch = 24;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = k;
    o.context.v_dtype = v;
    return o;
  }

  std::vector<int32_t> text(size_t n) const {
    const std::vector<int32_t> ids = family_.ids();
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < n; ++i) tokens.push_back(ids[i * i % ids.size()]);
    return tokens;
  }
  static Logits logits(Session& session, std::span<const int32_t> tokens) {
    const std::span<const float> row = session.append(tokens);
    return {row.begin(), row.end()};
  }

  static double distance(const Logits& got, const Logits& wanted) {
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - wanted[i], 2);
      size += std::pow(wanted[i], 2);
    }
    return std::sqrt(error / size);
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  bool can_ = true;  // heads that groups of 32 divide
};

TEST_P(FamiliesGrouped, ShortTextsAreThoseOfHalfFloatsAndLongOnesNear) {
  const auto host = cpu::make_cpu_device({1, 1});
  const auto open = [&](DType k, DType v) {
    return std::make_unique<Session>(*model_, std::vector<Device*>{host.get()}, options(k, v));
  };
  if (!can_) {
    try {
      open(DType::KIVI4, DType::KIVI4);
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(), testing::AnyOf(testing::HasSubstr("rows of latent attention"),
                                           testing::HasSubstr("do not divide this model's head size")));
    }
    return;
  }
  const auto exact = open(DType::F16, DType::F16), grouped = open(DType::KIVI4, DType::KIVI4);
  const std::vector<int32_t> all = text(330);
  const std::span<const int32_t> tokens = all;
  EXPECT_EQ(logits(*grouped, tokens.first(140)), logits(*exact, tokens.first(140)));
  const Logits wanted = logits(*exact, tokens.subspan(140, 180)),
               got = logits(*grouped, tokens.subspan(140, 180));
  const double most = model_->hparams().n_expert > 0 ? 1.0 : 0.25;  // roundings choose experts
  EXPECT_LT(distance(got, wanted), most);
  for (const int64_t n : {300, 270, 133, 70, 9}) {
    exact->truncate(n);
    grouped->truncate(n);
    EXPECT_EQ(grouped->n_past(), n);
    const auto next = tokens.subspan(static_cast<size_t>(n), 5);
    EXPECT_LT(distance(logits(*grouped, next), logits(*exact, next)), most) << "cut back to " << n;
    EXPECT_EQ(grouped->n_cached(), n + 5);
  }
}

// The cache on a device, on two, fetched for every step, on the host.
TEST_P(FamiliesGrouped, PlacementsGiveTheLogitsOfTheCpu) {
  if (!can_) return;
  const auto host = cpu::make_cpu_device({1, 1});
  const auto run = [&](const std::vector<Device*>& devices, const OffloadOptions& flags) {
    EngineOptions o = options(DType::KIVI4, DType::KIVI2);
    o.offload = flags;
    Session session(*model_, devices, o);
    std::vector<Logits> all;
    const std::vector<int32_t> tokens = text(300);
    all.push_back(logits(session, tokens));
    for (const int64_t n : {270, 99}) {
      session.truncate(n);
      all.push_back(logits(session, std::span(tokens).first(30)));
    }
    for (size_t d = 1; d < devices.size(); ++d) {
      EXPECT_EQ(static_cast<test::SimDevice*>(devices[d])->used_bytes(),
                session.placement().bytes.devices[d].total());
    }
    return all;
  };
  const std::vector<Logits> wanted = run({host.get()}, {});
  test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"});
  for (const int where : {0, 1, 2, 3}) {
    OffloadOptions flags;
    flags.n_gpu_layers = 99;
    flags.tensor_split = {1, 1};
    flags.kv_on_host = on_or_off(where == 2);
    flags.kv_prefetched = where == 3;
    const std::vector<Device*> one{host.get(), &sim0}, two{host.get(), &sim0, &sim1};
    if (where == 0) flags.tensor_split.clear();
    EXPECT_EQ(run(where == 0 ? one : two, flags), wanted) << where;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesGrouped, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
