// Perplexity: its arithmetic on known numbers, and on a real model against logits computed in one pass.
#include "tools/perplexity/score.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/tiny_model.h"
#include "support/trained_model.h"
#include "tools/options/options.h"
#include "tools/setup.h"
#include "tools/text_chunks.h"

namespace tandem::tools {
namespace {

TEST(NegativeLogLikelihood, OfKnownDistributions) {
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>(32, 7.5f), 3), std::log(32), 1e-12);
  const std::vector<float> logits{std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  EXPECT_NEAR(negative_log_likelihood(logits, 1), std::log(4), 1e-6);
  // Far from zero, where exp alone would overflow or vanish.
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>{1000, 1000}, 0), std::log(2), 1e-12);
  EXPECT_NEAR(negative_log_likelihood(std::vector<float>{-1000, -1001}, 1), 1 + std::log1p(std::exp(-1.0)),
              1e-12);
  EXPECT_EQ(negative_log_likelihood(std::vector<float>{0, -INFINITY}, 0), 0);
}

TEST(PerplexityEstimate, MeanAndStandardError) {
  PerplexityEstimate estimate;
  estimate.add(1);
  EXPECT_DOUBLE_EQ(estimate.perplexity(), std::exp(1));
  EXPECT_EQ(estimate.standard_error(), 0);
  estimate.add(2);
  estimate.add(6);
  EXPECT_DOUBLE_EQ(estimate.perplexity(), std::exp(3));
  // Sample deviation sqrt(7) over sqrt(3), and the slope of exp.
  EXPECT_NEAR(estimate.standard_error(), std::sqrt(7.0 / 3) * std::exp(3), 1e-9);
  PerplexityEstimate certain;
  for (int i = 0; i < 3; ++i) certain.add(0.1);
  EXPECT_NEAR(certain.standard_error(), 0, 1e-7);
}

ScoreFn adding(PerplexityEstimate& estimate) {
  return [&estimate](std::span<const float> logits, int32_t target) {
    estimate.add(negative_log_likelihood(logits, target));
  };
}

class PerplexityOfAModel : public testing::Test {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.model.path = directory_.path("demo.gguf");
    test::write_demo_f32(options.model.path);
    model_ = load_model(options);
    options.devices.n_threads = 2;
    devices_ = make_devices(options);
    const std::string text =
        "Once upon a time, there was a little boy called Finn. He lived in a stone house by the river. Finn "
        "had a "
        "big wish. He wanted to see where the sun sleeps. So Finn packed a bag and went.";
    ids_ = model_->vocab().tokenize(text, {.add_special = false});
  }

  EngineOptions session_options(int64_t n_ubatch) const {
    EngineOptions options;
    options.context.n_ctx = static_cast<int64_t>(ids_.size());
    options.context.n_ubatch = n_ubatch;
    options.context.all_logits = true;
    return options;
  }

  // The definition, over the logits of the whole chunk.
  double expected() {
    auto tokens = ids_;
    tokens[0] = model_->vocab().special().bos;
    Session session(*model_, pointers(devices_), session_options(512));
    double sum = 0;
    int64_t count = 0;
    session.evaluate(tokens, [&](int64_t first, int64_t n, std::span<const float> logits) {
      const size_t n_vocab = logits.size() / static_cast<size_t>(n);
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(first + i);
        if (at < ids_.size() / 2 || at + 1 == ids_.size()) continue;
        double total = 0;
        for (size_t v = 0; v < n_vocab; ++v) total += std::exp(logits[static_cast<size_t>(i) * n_vocab + v]);
        const float hit = logits[static_cast<size_t>(i) * n_vocab + static_cast<size_t>(ids_[at + 1])];
        sum += std::log(total) - hit;
        ++count;
      }
    });
    return std::exp(sum / static_cast<double>(count));
  }

  test::TempDir directory_;
  std::unique_ptr<Model> model_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<int32_t> ids_;
};

TEST_F(PerplexityOfAModel, ScoresTheSecondHalfOfAChunk) {
  ASSERT_EQ(model_->vocab().special().bos, 0);
  for (const int64_t n_ubatch : {512, 7, 1}) {
    Session session(*model_, pointers(devices_), session_options(n_ubatch));
    PerplexityEstimate estimate;
    for (int pass = 1; pass <= 2; ++pass) {  // the second chunk does not see the first
      score_chunk(session, ids_, model_->vocab().special().bos, adding(estimate), [] { return false; });
      const auto n = static_cast<int64_t>(ids_.size());
      EXPECT_EQ(estimate.count(), pass * (n - 1 - n / 2));
      // AMX rounds otherwise in large micro-batches, to 8 bits of mantissa.
      EXPECT_NEAR(estimate.perplexity(), expected(), 1e-3 * expected()) << "micro-batches of " << n_ubatch;
    }
    EXPECT_LT(estimate.perplexity(), 20);  // the model was trained on such stories
  }
}

TEST_F(PerplexityOfAModel, ScoresTheSmallestChunk) {
  Session session(*model_, pointers(devices_), session_options(512));
  PerplexityEstimate estimate;
  score_chunk(session, std::span(ids_).first(3), std::nullopt, adding(estimate), [] { return false; });
  EXPECT_EQ(estimate.count(), 1);
}

TEST_F(PerplexityOfAModel, IsOfTextsOnly) {
  const std::string path = directory_.path("model.gguf");
  test::tiny_llama().write(path);
  try {
    read_chunks({.file = path}, 8, model_->vocab());
    ADD_FAILURE() << "a model was read as a text";
  } catch (const Error& e) {
    EXPECT_EQ(e.what(), path + ": not a text in UTF-8: it has bytes that are 0");
  }
}

TEST_F(PerplexityOfAModel, StopsWhenAsked) {
  Session session(*model_, pointers(devices_), session_options(7));
  PerplexityEstimate estimate;
  try {
    score_chunk(session, ids_, model_->vocab().special().bos, adding(estimate),
                [&estimate] { return estimate.count() > 0; });  // after one micro-batch
    ADD_FAILURE() << "ran on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::interrupted);
  }
  EXPECT_GT(estimate.count(), 0);
  EXPECT_LT(estimate.count(), static_cast<int64_t>(ids_.size()) / 2);
}

}  // namespace
}  // namespace tandem::tools
