// Every architecture with most of its cache on disk: logits are those of a cache in memory, bit for bit. Those with fewer than
// three layers of keys and values, and with latent attention, are refused: one sentence.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/family_model.h"

namespace tandem {
namespace {

using Logits = std::vector<float>;

class FamiliesSpilled : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    const std::vector<int32_t> ids = family_.ids();
    while (ids_.size() < 230) ids_.push_back(ids[ids_.size() * 5 % ids.size()]);
  }

  EngineOptions options(DType cache) const {
    EngineOptions o;
    o.context.n_ctx = 256;
    o.context.n_ubatch = 16;
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = cache;
    o.oom_ladder = false;
    return o;
  }

  // Of a prompt, single tokens, and after the text was cut back.
  Logits logits(Session& session) const {
    Logits all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(std::span(ids_).first(180)));
    for (size_t i = 180; i < ids_.size(); ++i) add(session.append(std::span(ids_).subspan(i, 1)));
    for (const int64_t n : {200, 90}) {
      session.truncate(n);
      add(session.append(std::span(ids_).first(10)));
      add(session.append(std::span(ids_).subspan(10, 1)));
    }
    return all;
  }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  std::unique_ptr<Device> host_ = cpu::make_cpu_device({1, 1});
};

TEST_P(FamiliesSpilled, TheSameBits) {
  for (const DType cache : {DType::F16, DType::F32}) {
    Session memory(*model_, {host_.get()}, options(cache));
    const Logits expected = logits(memory);
    const std::vector<KvShape>& layers = memory.kv_config().layers;
    const bool is_latent =
        std::ranges::any_of(layers, [](const KvShape& s) { return s.has_rows() && !s.has_heads(); });
    const auto n_spilling =
        std::ranges::count_if(layers, [](const KvShape& s) { return s.has_heads() && !s.is_shared; });
    for (const double share : {0.97, 0.9, 0.8}) {
      EngineOptions o = options(cache);
      o.context.kv_memory = static_cast<size_t>(share * static_cast<double>(memory.kv_bytes()));
      o.context.kv_spill = folder_.path("");
      try {
        Session spilled(*model_, {host_.get()}, o);
        EXPECT_FALSE(is_latent);
        EXPECT_EQ(logits(spilled), expected) << dtype_name(cache) << " " << share;
        EXPECT_GT(spilled.executor().disk_bytes(), 0u);
        EXPECT_LE(spilled.kv_bytes() + spilled.executor().slot_bytes(DeviceId::host()), *o.context.kv_memory);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), is_latent ? ErrorCode::usage : ErrorCode::out_of_memory);
        EXPECT_THAT(e.message(), testing::HasSubstr(is_latent ? "latent attention" : "needs at least"));
        EXPECT_FALSE(n_spilling > 2 && share > 0.95) << e.what();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesSpilled, testing::ValuesIn(test::family_names()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
