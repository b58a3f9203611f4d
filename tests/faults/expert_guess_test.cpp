// Guesses of the experts that the next layer will choose: the router's own choice where its input does not change, with all
// that a router may add to its product, and fewer reads for nothing.
#include "exec/expert_guess.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "exec/expert_store.h"
#include "support/hf_folder.h"
#include "support/moody_disk.h"
#include "support/split_rig.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

class ExpertGuess : public testing::Test {
 protected:
  static constexpr int64_t kColumns = 40, kExperts = 24;

  const Weight* weight(int64_t n_rows, int64_t n_cols, float spread) {
    std::uniform_real_distribution<float> value(-spread, spread);
    std::vector<float>& data = data_.emplace_back(static_cast<size_t>(n_rows * n_cols));
    for (float& each : data) each = value(random_);
    return &weights_.emplace_back(
        Weight{.n_rows = n_rows, .n_cols = n_cols, .data = reinterpret_cast<const std::byte*>(data.data())});
  }
  static const float* floats(const Weight* weight) { return reinterpret_cast<const float*>(weight->data); }

  // The router's choice, written down plainly: scores, groups that are left, experts.
  static std::vector<int32_t> plain_choice(const ExpertRouter& r, const float* x, int64_t n) {
    std::vector<double> choice(kExperts);
    double sum = 0;
    for (int64_t e = 0; e < kExperts; ++e) {
      double logit = r.bias ? floats(r.bias)[e] : 0;
      for (int64_t c = 0; c < kColumns; ++c) logit += double{floats(r.matrix)[e * kColumns + c]} * x[c];
      choice[static_cast<size_t>(e)] = std::exp(logit);
      sum += std::exp(logit);
    }
    for (size_t e = 0; e < kExperts; ++e) {
      choice[e] = r.how.scoring == MoeScoring::softmax ? choice[e] / sum : choice[e] / (1 + choice[e]);
      if (r.selection_bias) choice[e] += floats(r.selection_bias)[e];
    }
    const auto size = static_cast<size_t>(kExperts / r.how.n_group);
    std::vector<std::pair<double, size_t>> groups;
    for (size_t g = 0; g < static_cast<size_t>(r.how.n_group); ++g) {
      std::vector<double> members(&choice[g * size], &choice[g * size] + size);
      std::ranges::sort(members, std::greater<>());
      groups.emplace_back(members[0] + members[1], g);
    }
    std::ranges::sort(groups, std::greater<>());
    std::vector<int32_t> experts;
    for (size_t i = 0; i < static_cast<size_t>(r.how.n_group_used); ++i) {
      for (size_t m = 0; m < size; ++m) experts.push_back(static_cast<int32_t>(groups[i].second * size + m));
    }
    std::ranges::sort(experts, [&](int32_t a, int32_t b) {
      return choice[static_cast<size_t>(a)] > choice[static_cast<size_t>(b)];
    });
    experts.resize(static_cast<size_t>(n));
    return experts;
  }

  std::mt19937_64 random_{7};
  std::deque<Weight> weights_;
  std::deque<std::vector<float>> data_;
};

TEST_F(ExpertGuess, IsTheRoutersChoice) {
  ExpertGuesser guesser;
  for (const MoeScoring scoring : {MoeScoring::softmax, MoeScoring::sigmoid}) {
    for (const int64_t n_group : {1, 6}) {
      for (const bool has_bias : {false, true}) {
        for (const bool has_selection_bias : {false, true}) {
          ExpertLayer layer;
          layer.n_expert = kExperts;
          layer.n_used = 6;
          layer.router = {weight(kExperts, kColumns, 0.5f),
                          has_bias ? weight(1, kExperts, 1) : nullptr,
                          has_selection_bias ? weight(1, kExperts, 0.5f) : nullptr,
                          {.n_expert = kExperts,
                           .n_used = 6,
                           .scoring = scoring,
                           .n_group = n_group,
                           .n_group_used = n_group > 1 ? 2 : 1}};
          for (int i = 0; i < 20; ++i) {
            const float* x = floats(weight(3, kColumns, 1));
            for (const int64_t n : {1, 3, 6}) {
              const auto one = guesser.guess(layer.router, x, 1, n);
              EXPECT_EQ(std::vector(one.begin(), one.end()), plain_choice(layer.router, x, n));
            }
            std::vector<int32_t> all;
            for (int64_t t = 0; t < 3; ++t) {
              for (const int32_t e : plain_choice(layer.router, x + t * kColumns, 3)) {
                if (std::ranges::find(all, e) == all.end()) all.push_back(e);
              }
            }
            const auto guesses = guesser.guess(layer.router, x, 3, 3);
            EXPECT_EQ(std::vector(guesses.begin(), guesses.end()), all);
          }
        }
      }
    }
  }
}

TEST_F(ExpertGuess, OnlyForRoutersOfTheSameInput) {
  ExpertLayer layer;
  layer.n_expert = kExperts;
  EXPECT_FALSE(ExpertGuesser::can_guess(layer.router, kExperts, kColumns));
  layer.router.matrix = weight(kExperts, kColumns, 1);
  EXPECT_TRUE(ExpertGuesser::can_guess(layer.router, kExperts, kColumns));
  EXPECT_FALSE(
      ExpertGuesser::can_guess(layer.router, kExperts, kColumns / 2));  // experts of a latent mixture
}

// A router with a bias for the choice, and groups of which it takes half. Layers that add nothing to their input, so that
// the next router sees the same.
class GuessesOfAModel : public test::SplitRig {
 protected:
  void SetUp() override {
    test::HfFolder folder = test::family_folder(test::load_family("bailing_moe2"));
    for (auto& [name, tensor] : folder.tensors) {
      if (name.ends_with("attention.dense.weight") || name.ends_with("down_proj.weight"))
        tensor.bytes.assign(tensor.bytes.size(), '\0');
    }
    const std::string layer = "model.layers.";
    folder.tensors[layer + "2.post_attention_layernorm.weight"] =
        folder.tensors[layer + "1.post_attention_layernorm.weight"];
    // BF16: 0.5 and 0 in turn, in pairs.
    std::string& bias = folder.tensors[layer + "2.mlp.gate.expert_bias"].bytes;
    for (size_t e = 0; e < bias.size() / 2; ++e) bias.replace(2 * e, 2, e % 4 < 2 ? "\0\x3f" : "\0\0", 2);
    folder.write(directory_.path("hf"));
    tools::ConvertOptions how;
    how.type = tools::OutType::Q8_0;
    how.n_threads = 1;
    const std::string path = directory_.path("model.gguf");
    write_conversion(tools::prepare_conversion(directory_.path("hf"), how), how, path);
    model_ = Model::load(path);
  }
  std::unique_ptr<Model> model_;
};

TEST_F(GuessesOfAModel, AreRightWhereTheInputStays) {
  test::DiskLog log;
  EngineOptions o = options();
  o.context.n_ctx = 64;
  o.open_disk = [&](std::vector<DiskFile> files) {
    return std::make_unique<test::MoodyDisk>(std::move(files), 3, &log);
  };
  OffloadChoice choice;
  choice.chosen_experts = true;
  choice.n_expert_bytes = 14 * 3 * 8192;  // of 32 experts, 14
  o.placement = place(model_->architecture(), model_->weights(), {host_.get()}, {}, choice);
  Session s(*model_, {host_.get()}, o);
  for (int32_t id = 3; id < 50; ++id) s.append(std::span(&id, 1));
  const ExpertCounts counts = s.expert_counts();
  EXPECT_EQ(counts.n_used, 47u * 2 * 6);
  EXPECT_GT(counts.n_ahead, 20u);
  EXPECT_EQ(counts.n_ahead_used, counts.n_ahead);
}

// A GPU's slots, filled by a policy that looks ahead: what is brought before it is needed is found. Layers 1 and 2 have
// experts; the second one's guesses are right.
TEST_F(GuessesOfAModel, ArePreparedForByAPolicyThatLooksAhead) {
  const auto counts_with = [&](const MakeCachePolicy& policy, bool on_disk) {
    EngineOptions o = options();
    o.context.n_ctx = 64;
    o.expert_policy = policy;
    test::SimDevice sim({});
    OffloadChoice choice{.n_gpu_layers = 99,
                         .n_cpu_moe = 99,
                         .chosen_experts = on_disk,
                         .n_expert_bytes = size_t{1} << 30,
                         .n_cached_experts = 4,
                         .kept_experts = 1};
    o.placement = place(model_->architecture(), model_->weights(), {host_.get(), &sim}, {}, choice);
    EXPECT_TRUE(o.placement.caches_experts(StepKind::decode));
    Session s(*model_, {host_.get(), &sim}, o);
    for (int32_t id = 3; id < 50; ++id) s.append(std::span(&id, 1));
    EXPECT_EQ(s.expert_counts().on_gpus.n_used, 47u * 2 * 6);
    return s.expert_counts().on_gpus;
  };
  const MakeCachePolicy ahead = [](size_t n) { return std::make_unique<KeepsExpected>(n, 256); };
  for (const bool on_disk : {false, true}) {
    const ExpertCacheCounts usual = counts_with(usual_cache_policy, on_disk),
                            expected = counts_with(ahead, on_disk);
    EXPECT_GE(expected.n_found, usual.n_found + 20) << on_disk;
    EXPECT_LE(expected.n_kept, 47u * 2);  // one for each layer and step
  }
}

}  // namespace
}  // namespace tandem
