// Every architecture in a cache that grows block by block, with what its positions are scaled by (linear, YaRN, Llama 3's,
// LongRoPE): logits do not depend on how much is reserved for tokens that are not there yet, on the host and where caches are
// copied or split as they grow.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

class FamiliesGrowing : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { load(GetParam()); }

  void load(const std::string& name) {
    family_ = test::load_family(name);
    model_ = Model::load(test::convert_family(family_, folder_));
    ids_ = family_.ids();
  }

  EngineOptions options(int64_t n_ctx) const {
    EngineOptions o;
    o.context.n_ctx = n_ctx;
    o.context.n_ctx_given = true;
    o.context.n_ubatch = 24;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = DType::F32;
    o.oom_ladder = false;
    return o;
  }

  // A prompt, then token after token over the ends of blocks: the logits after each from the prompt's last one on.
  Logits logits(Session& session, size_t n_prompt = 24) const {
    Logits all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(std::span(ids_).first(n_prompt)));
    for (size_t i = n_prompt; i < ids_.size(); ++i) add(session.append(std::span(ids_).subspan(i, 1)));
    return all;
  }
  Logits logits(const std::vector<Device*>& devices, const EngineOptions& o) const {
    Session session(*model_, devices, o);
    return logits(session);
  }
  Logits logits(int64_t n_ctx) const { return logits({host_.get()}, options(n_ctx)); }

  static double difference(const Logits& got, const Logits& want) {
    EXPECT_EQ(got.size(), want.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < std::min(got.size(), want.size()); ++i) {
      error += std::pow(got[i] - want[i], 2);
      size += std::pow(want[i], 2);
    }
    return std::sqrt(error / size);
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
};

TEST_P(FamiliesGrowing, LogitsDoNotDependOnWhatIsReserved) {
  const int64_t tight = ceil_div(static_cast<int64_t>(ids_.size()), 32) * 32;
  const int64_t n_orig = family_.json["config"].value("original_max_position_embeddings", int64_t{0});
  // LongRoPE: contexts up to the original length are another matter than longer ones.
  const int64_t wide = n_orig >= tight ? n_orig : 256;
  const Logits expected = logits(tight);
  EXPECT_EQ(logits(wide), expected);
  // MXFP4 products round activations to 8 bits, so a last bit of another order of sums may become a step.
  const double tolerance = GetParam().starts_with("gpt_oss") ? 3e-2 : 1e-4;
  for (const char* where : {"prefetched", "split"}) {
    SCOPED_TRACE(where);
    EngineOptions o = options(wide);
    o.offload.n_gpu_layers = model_->hparams().n_layer + 1;
    if (where == std::string_view("split")) {
      o.offload.kv_split = 40;
    } else {
      o.offload.kv_prefetched = true;
    }
    test::SimDevice sim({});
    EXPECT_LT(difference(logits({host_.get(), &sim}, o), expected), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesGrowing, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

class LongRope : public FamiliesGrowing {
 protected:
  static constexpr int64_t kOriginal = 32;
  void SetUp() override {
    load("phi3_longrope_long");  // 72 tokens
    ASSERT_EQ(family_.json["config"]["original_max_position_embeddings"], kOriginal);
  }
};

// The size of the context chooses the factors, so no cached key has to change when a text grows past the original length.
TEST_F(LongRope, TheContextChoosesTheFactors) {
  const auto first = [&](int64_t n_ctx) {
    Session session(*model_, {host_.get()}, options(n_ctx));
    const std::span<const float> row = session.append(std::span(ids_).first(30));
    return Logits(row.begin(), row.end());
  };
  const Logits small = first(kOriginal), large = first(kOriginal + 1);
  EXPECT_EQ(first(30), small);
  EXPECT_EQ(first(256), large) << "long factors from the first token on";
  EXPECT_GT(difference(large, small), 1e-2) << "the factors are the same";
}

TEST_F(LongRope, TextsGrowPastTheOriginalLengthWithoutASwitch) {
  const Logits expected = logits(96);
  Session session(*model_, {host_.get()}, options(256));
  EXPECT_EQ(logits(session), expected);
  // Cut back below the original length, and over it again.
  session.truncate(20);
  Logits again;
  for (size_t i = 20; i < ids_.size(); ++i) {
    const std::span<const float> row = session.append(std::span(ids_).subspan(i, 1));
    if (i >= 23) again.insert(again.end(), row.begin(), row.end());
  }
  EXPECT_LT(difference(again, expected), 1e-5);
  // The whole text in one step of a prompt.
  EngineOptions o = options(256);
  o.context.n_ubatch = 128;
  Session whole(*model_, {host_.get()}, o);
  const std::span<const float> row = whole.append(ids_);
  const Logits last(expected.end() - static_cast<int64_t>(row.size()), expected.end());
  EXPECT_LT(difference(Logits(row.begin(), row.end()), last), 1e-5);
}

// A context of the original length is full there: no text has some keys with the one factors and some with the others.
TEST_F(LongRope, AContextOfTheOriginalLengthEndsThere) {
  Session session(*model_, {host_.get()}, options(kOriginal));
  EXPECT_EQ(session.n_ctx(), kOriginal);
  session.append(std::span(ids_).first(kOriginal));
  try {
    session.append(std::span(ids_).subspan(kOriginal, 1));
    ADD_FAILURE() << "not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), testing::HasSubstr("n_ctx"));
  }
}

}  // namespace
}  // namespace tandem
