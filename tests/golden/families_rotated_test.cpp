// Every architecture with heads that are rotated before they are cached (--kv-rotate on): the logits are those without,
// wherever layers and caches are, and texts are cut back, saved, kept and batched as ever.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session_file.h"
#include "kv/block_store.h"
#include "support/batch_rig.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

class FamiliesRotated : public test::BatchRig, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    ids_ = family_.ids();
    for (int i = 0; i < model_->hparams().n_layer; ++i) {
      has_heads_ |= model_->architecture().kv_shape(i).has_heads();
    }
  }

  EngineOptions options(Toggle rotate, DType dtype = DType::F32) const {
    EngineOptions o;
    o.context.n_ctx = std::max<int64_t>(family_.n_ctx(), 160);
    if (family_.n_ctx() > 0) o.context.n_ctx = family_.n_ctx();
    o.context.n_ubatch = 24;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = dtype;
    o.context.kv_rotate = rotate;
    return o;
  }

  // After the prompt in uneven micro-batches, and after some decoded tokens.
  Logits logits(Session& session) const {
    Logits all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(std::span(ids_).first(ids_.size() - 3)));
    for (size_t i = ids_.size() - 3; i < ids_.size(); ++i) add(session.append(std::span(ids_).subspan(i, 1)));
    return all;
  }
  Logits logits_of(const EngineOptions& o, cpu::Isa isa = cpu::best_isa()) const {
    const auto device = cpu::make_cpu_device({1, 1, isa});
    Session session(*model_, {device.get()}, o);
    return logits(session);
  }

  static double distance(std::span<const float> got, std::span<const float> wanted) {
    EXPECT_EQ(got.size(), wanted.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - wanted[i], 2);
      size += std::pow(wanted[i], 2);
    }
    return std::sqrt(error / size);
  }
  // Products with MXFP4 weights round activations to 8 bits, so a last bit may become a step.
  double tolerance() const { return GetParam() == "gpt_oss" ? 3e-2 : 1e-4; }

  void expect_refusal() const {
    const auto host = cpu::make_cpu_device({1, 1});
    try {
      const Session session(*model_, {host.get()}, options(Toggle::on));
      ADD_FAILURE() << "not refused";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(e.what(), testing::HasSubstr("kv_rotate=on: this model caches no heads"));
    }
    const Session session(*model_, {host.get()}, options(Toggle::automatic));
    EXPECT_EQ(session.kv_config().format(0).rotation, KvRotation{});
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  bool has_heads_ = false;
};

TEST_P(FamiliesRotated, LogitsAreThoseWithoutRotation) {
  if (!has_heads_) return expect_refusal();
  const auto host = cpu::make_cpu_device({1, 1});
  const Session session(*model_, {host.get()}, options(Toggle::on));
  const KvConfig& kv = session.kv_config();
  for (size_t i = 0; i < kv.layers.size(); ++i) {
    const KvShape& shape = kv.layers[i];
    EXPECT_EQ(kv.format(i).rotation.keys, shape.has_rows() ? hadamard_width(shape.head_dim_k) : 0) << i;
    EXPECT_EQ(kv.format(i).rotation.values, shape.has_rows() ? hadamard_width(shape.head_dim_v) : 0) << i;
  }
  for (const cpu::Isa isa : cpu::supported_isas()) {
    const Logits plain = logits_of(options(Toggle::off), isa), rotated = logits_of(options(Toggle::on), isa);
    EXPECT_NE(rotated, plain) << "nothing is rotated";
    EXPECT_LT(distance(rotated, plain), tolerance()) << cpu::isa_name(isa);
  }
  if (model_->hparams().n_expert > 0) return;  // where scores of experts nearly tie, roundings choose
  const Logits exact = logits_of(options(Toggle::off));
  EXPECT_LT(distance(logits_of(options(Toggle::on, DType::F16)), exact), 5e-3);
}

// What four bits lose, with random weights, whose heads have no outliers: then rotation helps or harms a little. (What it
// gains with trained weights: scripts/demo_model/cache_types.py.)
TEST_P(FamiliesRotated, FourBitsLoseAboutAsMuchAsWithoutRotation) {
  for (int i = 0; i < model_->hparams().n_layer; ++i) {
    const KvShape shape = model_->architecture().kv_shape(i);
    if (shape.has_rows() && (!shape.has_heads() || shape.head_dim_k % 32 != 0 || shape.head_dim_v % 32 != 0))
      GTEST_SKIP() << "heads that no block of four bits divides";
  }
  if (model_->hparams().n_expert > 0) GTEST_SKIP() << "roundings choose experts";
  const Logits exact = logits_of(options(Toggle::off));
  double plain = 0, rotated = 0;
  for (const DType dtype : {DType::Q4_0, DType::Q4_1, DType::IQ4_NL}) {
    plain += distance(logits_of(options(Toggle::off, dtype)), exact);
    rotated += distance(logits_of(options(Toggle::automatic, dtype)), exact);
  }
  EXPECT_LT(rotated, 1.5 * plain);
}

TEST_P(FamiliesRotated, PlacementsGiveTheLogitsOfTheCpu) {
  if (!has_heads_) GTEST_SKIP() << "no heads are cached";
  const auto host = cpu::make_cpu_device({1, 1});
  const EngineOptions o = options(Toggle::on);
  Session alone(*model_, {host.get()}, o);
  const Logits expected = logits(alone);
  const bool is_recurrent = alone.kv_config().is_recurrent();
  const int64_t n_layer = model_->hparams().n_layer;
  for (const int64_t ngl : {int64_t{1}, n_layer + 1}) {
    for (const CacheChoice& cache : {CacheChoice(CacheBesideLayers{}), CacheChoice(CacheOnHost{}),
                                     CacheChoice(PrefetchedCache{}), CacheChoice(SplitCache{30})}) {
      const bool prefetched = std::holds_alternative<PrefetchedCache>(cache),
                 split = cache.index() == CacheChoice(SplitCache{}).index();
      if (prefetched && is_recurrent) continue;
      SCOPED_TRACE(testing::Message() << "-ngl " << ngl << " cache " << cache.index());
      test::SimDevice sim0({.name = "SIM0"}), sim1({.name = "SIM1"});
      std::vector<Device*> devices{host.get(), &sim0};
      EngineOptions here = o;
      if (!split) devices.push_back(&sim1);
      here.offload.n_gpu_layers = ngl;
      here.offload.tensor_split = split ? std::vector<double>{} : std::vector<double>{1, 1};
      here.offload.kv_on_host = on_or_off(std::holds_alternative<CacheOnHost>(cache));
      here.offload.kv_prefetched = prefetched;
      if (split) here.offload.kv_split = 30;
      Session session(*model_, devices, here);
      const Logits got = logits(session);
      if (split) {  // merging rounds otherwise
        EXPECT_LT(distance(got, expected), tolerance());
      } else {
        EXPECT_EQ(got, expected);
      }
      EXPECT_EQ(sim0.used_bytes(), session.placement().bytes.devices[1].total());
    }
  }
}

TEST_P(FamiliesRotated, SavedAndLoadedByEitherSetting) {
  if (!has_heads_) GTEST_SKIP() << "no heads are cached";
  const auto host = cpu::make_cpu_device({1, 1});
  Session whole(*model_, {host.get()}, options(Toggle::off));
  const std::span<const float> end = whole.append(ids_);
  const Logits expected(end.begin(), end.end());
  for (const Toggle saved : {Toggle::on, Toggle::off}) {
    Session session(*model_, {host.get()}, options(saved));
    session.append(ids_);
    session.truncate(50);
    save_session(session, folder_.path("saved"));
    for (const Toggle loaded : {Toggle::on, Toggle::off}) {
      SCOPED_TRACE(testing::Message() << (saved == Toggle::on ? "saved rotated" : "saved")
                                      << (loaded == Toggle::on ? ", loaded rotated" : ", loaded"));
      Session other(*model_, {host.get()}, options(loaded));
      SessionFile(folder_.path("saved"), other).restore(other, 50);
      const auto n_past = static_cast<size_t>(other.n_past());
      EXPECT_LT(distance(other.append(std::span(ids_).subspan(n_past)), expected), tolerance());
      other.truncate(33);
      EXPECT_LT(distance(other.append(std::span(ids_).subspan(33)), expected), tolerance()) << "cut back";
    }
  }
}

TEST_P(FamiliesRotated, KeptBlocksAreOfOneSetting) {
  if (!has_heads_) GTEST_SKIP() << "no heads are cached";
  const auto host = cpu::make_cpu_device({1, 1});
  BlockStore store(folder_.path("store"));
  Session first(*model_, {host.get()}, options(Toggle::on));
  first.keep_in(store);
  const std::span<const float> end = first.append(ids_);
  const Logits expected(end.begin(), end.end());
  first.keep();
  store.flush();
  Session other(*model_, {host.get()}, options(Toggle::off));
  other.keep_in(store);
  EXPECT_EQ(other.load_kept(ids_), 0);
  Session same(*model_, {host.get()}, options(Toggle::on));
  same.keep_in(store);
  EXPECT_GT(same.load_kept(ids_), 0);
  const auto n_past = static_cast<size_t>(same.n_past());
  EXPECT_LT(distance(same.append(std::span(ids_).subspan(n_past)), expected), tolerance());
}

TEST_P(FamiliesRotated, InABatchWithSharedBeginnings) {
  if (!has_heads_) GTEST_SKIP() << "no heads are cached";
  if (GetParam() == "gpt_oss" || family_.n_ctx() > 0)
    GTEST_SKIP() << "other roundings or rotations by context size";
  std::vector<BatchRequest> list;
  for (size_t i = 0; i < 5; ++i) {
    BatchRequest r;
    r.index = static_cast<int64_t>(i);
    r.prompt.assign(ids_.begin(), ids_.begin() + 64 + static_cast<int64_t>(i));
    for (size_t own = 0; own < i; ++own) r.prompt.push_back(ids_[own * 3 + i]);
    r.sampling.temp = 0;
    r.generation.n_predict = 6;
    list.push_back(r);
  }
  const std::vector<std::string> expected = alone(*model_, list);  // not rotated
  EngineOptions o = BatchRig::options(3, 1024);
  o.context.kv_rotate = Toggle::on;
  Runtime runtime(*model_, {host_.get()}, o);
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), expected);
  EXPECT_EQ(batcher.stats().n_reused, 4 * 64);
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesRotated, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
