// Log probabilities of generated tokens against those of an independent program's float64 logits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/cpu_device.h"
#include "engine/generate.h"
#include "support/gguf_bytes.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

constexpr float kTolerance = 1e-3f;

std::vector<double> log_softmax(const std::vector<double>& logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - max);
  std::vector<double> out;
  for (const double x : logits) out.push_back(x - max - std::log(sum));
  return out;
}

TEST(GoldenLogprobs, OfAGreedyText) {
  const test::TempDir directory;
  test::write_demo_f32(directory.path("demo.gguf"));
  const auto model = Model::load(directory.path("demo.gguf"));
  const test::Golden golden = test::demo_golden();
  const std::vector<int32_t>& ids = golden.ids;
  const auto device = cpu::make_cpu_device({2, 2});
  EngineOptions engine;
  engine.context.n_ctx = 128;
  engine.context.k_dtype = engine.context.v_dtype = DType::F32;
  Session session(*model, {device.get()}, engine);
  SamplerParams greedy;
  greedy.temp = 0;
  greedy.logit_bias = {{ids[8], 1e-4f}};  // the probabilities are of the logits before biases
  Sampler sampler(greedy, sampler_model(session));
  GenerateOptions options;
  options.n_predict = static_cast<int64_t>(ids.size() - golden.n_prompt);
  options.n_logprobs = 5;
  std::vector<TokenLogprobs> found;
  GenerateCallbacks callbacks;
  callbacks.chosen = [&](const Continuation::Choice& choice) { found.push_back(choice.logprobs.value()); };
  generate(session, sampler, std::span(ids).first(golden.n_prompt), options, callbacks);
  ASSERT_EQ(found.size(), ids.size() - golden.n_prompt);

  int n_checked = 0;
  for (const auto& [position, row] : golden.logits) {
    const auto p = static_cast<size_t>(position);  // its logits choose the token at p + 1
    if (p + 1 < golden.n_prompt || p + 1 >= ids.size()) continue;
    SCOPED_TRACE("position " + std::to_string(position));
    const std::vector<double> expected = log_softmax({row.begin(), row.end()});
    std::vector<int32_t> order(expected.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return expected[a] > expected[b]; });
    const TokenLogprobs& token = found[p + 1 - golden.n_prompt];
    EXPECT_EQ(token.chosen.id, ids[p + 1]);
    EXPECT_NEAR(token.chosen.logprob, expected[token.chosen.id], kTolerance);
    ASSERT_EQ(token.top.size(), 5u);
    for (size_t i = 0; i < token.top.size(); ++i) {
      EXPECT_EQ(token.top[i].id, order[i]);
      EXPECT_NEAR(token.top[i].logprob, expected[order[i]], kTolerance);
    }
    ++n_checked;
  }
  EXPECT_EQ(n_checked, 3);
}

TEST(Logprobs, ByHand) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{0, std::log(3.0f), -inf, std::log(3.0f), std::log(9.0f)};  // of 16
  const TokenLogprobs found = logprobs_of(logits, 0, 3);
  EXPECT_EQ(found.chosen.id, 0);
  EXPECT_NEAR(found.chosen.logprob, std::log(1 / 16.0), 1e-6);
  ASSERT_EQ(found.top.size(), 3u);
  EXPECT_EQ(found.top[0].id, 4);
  EXPECT_NEAR(found.top[0].logprob, std::log(9 / 16.0), 1e-6);
  EXPECT_EQ(found.top[1].id, 1);  // the lower id of two
  EXPECT_EQ(found.top[2].id, 3);
  EXPECT_EQ(logprobs_of(logits, 2, 0).chosen.logprob, -inf);
  EXPECT_TRUE(logprobs_of(logits, 2, 0).top.empty());
  EXPECT_EQ(logprobs_of(logits, 1, 1000).top.size(), logits.size());
  EXPECT_EQ(logprobs_of(std::vector<float>{1e30f}, 0, 1).chosen.logprob, 0);
  EXPECT_EQ(logprobs_of(std::vector<float>{500, -1e30f}, 0, 1).chosen.logprob, 0);
}

}  // namespace
}  // namespace tandem
