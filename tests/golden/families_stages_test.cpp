// Every architecture with its layers divided over simulated ranks: the logits of one process bit for bit, on CPUs and on
// simulated GPUs, in prompts, decoding, cut back and with guesses.
#include <gtest/gtest.h>

#include "cpu/cpu_device.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"
#include "support/sim_device.h"
#include "support/stages_rig.h"

namespace tandem {
namespace {

class FamiliesStages : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    path_ = test::convert_family(family_, directory_, tools::OutType::Q8_0);
    options_.context.n_ctx = family_.n_ctx();
    options_.context.n_ubatch = 24;
    options_.context.n_draft = 3;
    options_.context.latent_form = test::form_of(GetParam());
    options_.context.n_deferred = family_.n_deferred();
  }

  // After a prompt in several micro-batches, decoded tokens, a text that is cut back, and one with guesses.
  std::vector<float> logits(Session& session) const {
    std::vector<float> all;
    const auto add = [&](std::span<const float> rows) { all.insert(all.end(), rows.begin(), rows.end()); };
    const std::vector<int32_t> ids = family_.ids();
    const size_t n = ids.size();
    add(session.append(std::span(ids).first(n - 3)));
    for (size_t i = n - 3; i < n - 1; ++i) add(session.append(std::span(ids).subspan(i, 1)));
    session.truncate(static_cast<int64_t>(n / 2));
    add(session.append(std::span(ids).subspan(n / 2, n - 4 - n / 2)));
    const int64_t n_guesses = std::min<int64_t>(3, session.max_checked());
    if (n_guesses > 0) add(session.append_all(std::span(ids).subspan(n - 4, static_cast<size_t>(n_guesses))));
    const TokenLogits last = session.append(std::span(ids).last(1), LogitsWanted::largest);
    add(last.all());
    for (size_t i = 0; i < last.n_top(); ++i)
      EXPECT_EQ(last.top_logit(i), last.all()[static_cast<size_t>(last.top_id(i))]);
    return all;
  }

  test::Family family_;
  test::TempDir directory_;
  std::string path_;
  EngineOptions options_;
};

TEST_P(FamiliesStages, LogitsEqualThoseOfOneProcess) {
  const auto whole = Model::load(path_);
  const auto host = cpu::make_cpu_device({1, 1});
  Session alone(*whole, {host.get()}, options_);
  const std::vector<float> expected = logits(alone);
  const std::vector<bool> cuts = possible_cuts(whole->architecture());
  for (int n_ranks = 1; n_ranks <= 4; ++n_ranks) {
    test::StagesRig rig{path_, test::stages_of(cuts, n_ranks), options_};
    if (rig.layers.empty()) break;
    for (const bool gpus : {false, true}) {
      SCOPED_TRACE(std::to_string(n_ranks) + (gpus ? " ranks with GPUs" : " ranks"));
      std::vector<std::unique_ptr<test::SimDevice>> sims;
      for (int r = 0; r < n_ranks; ++r)
        sims.push_back(std::make_unique<test::SimDevice>(test::SimOptions{.name = "SIM0"}));
      if (gpus) {
        rig.gpus = [&](int rank) {  // a rank in the middle has none
          const auto sim = static_cast<size_t>(rank);
          return rank == 1 && n_ranks > 2 ? std::vector<Device*>{} : std::vector<Device*>{sims[sim].get()};
        };
      }
      std::vector<float> found;
      for (const test::SimRankEnd& end : rig.run([&](Session& session) { found = logits(session); }))
        EXPECT_EQ(end.error, "");
      EXPECT_EQ(found, expected);
    }
    if (n_ranks == 1) continue;
    // No rank has what another one has, but for an embedding that is also the output head, and vectors of all layers.
    EXPECT_LT(rig.weight_bytes[0], whole->n_weight_bytes());
    EXPECT_GT(rig.times[0].sent_bytes, 0u);
    EXPECT_EQ(rig.times.back().sent_bytes, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesStages, testing::ValuesIn(test::family_names_and_forms()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
