// Texts with speculation are the texts without: greedy and sampled, however a text ends, for caches that can be cut
// anywhere and for recurrent layers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/generate.h"
#include "engine/model_drafter.h"
#include "speculate/ngram_drafter.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/tiny_model.h"
#include "support/trained_model.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using Checks = Speculation::Checks;

// Random guesses, and right ones where `answers` says so.
class RandomDrafter final : public Drafter {
 public:
  RandomDrafter(std::vector<int32_t> answers, int32_t n_vocab, uint32_t seed)
      : answers_(std::move(answers)), n_vocab_(n_vocab), random_(seed) {}
  void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) override {
    for (size_t i = text.size();; ++i) {
      const bool right = random_() % 8 < 6 && i < answers_.size();
      const int32_t id =
          right ? answers_[i] : static_cast<int32_t>(random_() % static_cast<uint32_t>(n_vocab_));
      if (!take({id, right ? 7 : 0})) return;
    }
  }
  bool is_free() const override { return true; }
  double prior(int) const override { return 0.5; }

 private:
  std::vector<int32_t> answers_;
  int32_t n_vocab_;
  std::mt19937 random_;
};

struct Text {
  std::vector<int32_t> ids, held;  // chosen; in the session at the end
  std::string text;
  GenerateStats stats;
};

class SpeculatedText : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string name = GetParam();
    const std::string path = directory_.path("model.gguf");
    if (name == "demo") {
      test::write_demo_f32(path);
    } else {
      test::HfFolder hf = test::family_folder(test::load_family(name));
      hf.config["max_position_embeddings"] = 4096;
      hf.write(directory_.path("hf"));
      tools::ConvertOptions convert;
      convert.n_threads = 1;
      write_conversion(tools::prepare_conversion(directory_.path("hf"), convert), convert, path);
    }
    model_ = Model::load(path);
    for (int32_t id = 5; id < 75; ++id) prompt_.push_back(id);
  }
  std::unique_ptr<Session> session(int64_t n_draft, int64_t n_ctx = 512) {
    EngineOptions options;
    options.context.n_ctx = n_ctx;
    options.context.n_ubatch = 40;
    options.context.n_draft = n_draft;
    options.context.k_dtype = options.context.v_dtype = DType::F32;
    return std::make_unique<Session>(*model_, std::vector<Device*>{device_.get()}, options);
  }
  Text generate_with(Session& session, const SamplerParams& sampling, const GenerateOptions& options,
                     Speculation* speculation) {
    Text text;
    Sampler sampler(sampling, sampler_model(session));
    GenerateCallbacks callbacks;
    callbacks.chosen = [&](const Continuation::Choice& choice) { text.ids.push_back(choice.id); };
    callbacks.text = [&](std::string_view piece) { text.text += piece; };
    text.stats = generate(session, sampler, prompt_, options, callbacks, speculation);
    text.held.assign(session.tokens().begin(), session.tokens().end());
    return text;
  }
  // With random guesses, of which three quarters are right, all checked.
  void expect_same(const SamplerParams& sampling, const GenerateOptions& options, int64_t n_ctx = 512) {
    const auto plain_session = session(0, n_ctx);
    const Text plain = generate_with(*plain_session, sampling, options, nullptr);
    std::vector<int32_t> answers = prompt_;
    answers.insert(answers.end(), plain.ids.begin(), plain.ids.end());
    for (const int64_t n_max : {1, 3, 16}) {
      SCOPED_TRACE("guesses " + std::to_string(n_max));
      const auto guessing_session = session(n_max, n_ctx);
      const auto n_vocab = static_cast<int32_t>(model_->hparams().n_vocab);
      Speculation speculation(std::make_unique<RandomDrafter>(answers, n_vocab, static_cast<uint32_t>(n_max)),
                              n_max, Checks::all);
      const Text text = generate_with(*guessing_session, sampling, options, &speculation);
      EXPECT_EQ(text.ids, plain.ids);
      EXPECT_EQ(text.text, plain.text);
      EXPECT_EQ(text.held, plain.held);
      EXPECT_EQ(text.stats.reason, plain.stats.reason);
      EXPECT_EQ(text.stats.n_shifts, plain.stats.n_shifts);
      EXPECT_GT(text.stats.speculation.n_right, 0);
      brought_.n_checked += text.stats.speculation.n_checked;
      brought_.n_right += text.stats.speculation.n_right;
    }
  }

  static SamplerParams greedy() {
    SamplerParams p;
    p.temp = 0;
    p.ignore_eos = true;
    return p;
  }

  test::TempDir directory_;
  std::unique_ptr<Device> device_ = cpu::make_cpu_device({2, 2});
  std::unique_ptr<Model> model_;
  std::vector<int32_t> prompt_;
  SpeculationStats brought_;  // of all texts with guesses
};

TEST_P(SpeculatedText, GreedyIsTheSame) {
  GenerateOptions options;
  options.n_predict = 100;
  expect_same(greedy(), options);
  EXPECT_GT(brought_.n_right, 100);
  EXPECT_GT(brought_.n_checked - brought_.n_right, 50);
}

TEST_P(SpeculatedText, SampledIsTheSameWithTheSameSeed) {
  SamplerParams p = greedy();
  p.temp = 0.9f;
  p.repeat_penalty = 1.1f;
  for (p.seed = 1; p.seed <= 2; ++p.seed) {
    GenerateOptions options;
    options.n_predict = 60;
    expect_same(p, options);
  }
}

TEST_P(SpeculatedText, EndsWhereTheContextIsFull) {
  GenerateOptions options;
  expect_same(greedy(), options, 128);
}

TEST_P(SpeculatedText, ShiftsTheContext) {
  GenerateOptions options;
  options.context_shift = true;
  options.n_keep = 4;
  options.n_predict = 120;
  expect_same(greedy(), options, 128);
}

TEST_P(SpeculatedText, EndsAtAStopText) {
  GenerateOptions options;
  options.n_predict = 100;
  const auto plain_session = session(0);
  const Text plain = generate_with(*plain_session, greedy(), options, nullptr);
  ASSERT_GT(plain.text.size(), 40u);
  options.stop = {plain.text.substr(plain.text.size() / 2, 6)};
  expect_same(greedy(), options);
}

// The model as its own draft model.
TEST_P(SpeculatedText, AModelGuessesItself) {
  GenerateOptions options;
  options.n_predict = 60;
  const auto plain_session = session(0), own = session(8), draft = session(0);
  const Text plain = generate_with(*plain_session, greedy(), options, nullptr);
  check_same_vocabulary(*model_, *model_);
  Speculation speculation(std::make_unique<ModelDrafter>(*draft, model_->hparams().n_vocab), 8, Checks::all);
  const Text text = generate_with(*own, greedy(), options, &speculation);
  EXPECT_EQ(text.ids, plain.ids);
  EXPECT_EQ(text.held, plain.held);
  // All but those where the end of the text would be the most likely token.
  EXPECT_GT(2 * text.stats.speculation.n_right, text.stats.speculation.n_checked);
  EXPECT_GE(text.stats.speculation.n_right, 40);
}

// A text that repeats itself, guessed from itself, with the number of guesses that pays.
TEST_P(SpeculatedText, LookupWithTheNumberThatPays) {
  SamplerParams p = greedy();
  p.logit_bias = {{40, 1e5f}};  // one token for ever
  GenerateOptions options;
  options.n_predict = 200;
  const auto plain_session = session(0), guessing_session = session(16);
  const Text plain = generate_with(*plain_session, p, options, nullptr);
  Speculation speculation(std::make_unique<NgramDrafter>(), 16);
  const Text text = generate_with(*guessing_session, p, options, &speculation);
  EXPECT_EQ(text.ids, plain.ids);
  EXPECT_EQ(text.held, plain.held);
  EXPECT_GT(text.stats.speculation.n_right, 0);  // how many depends on the clock
}

INSTANTIATE_TEST_SUITE_P(Models, SpeculatedText,
                         testing::Values("demo", "llama", "gemma3", "qwen3_next", "granite_hybrid",
                                         "deepseek_v2"),
                         [](const auto& param_info) { return param_info.param; });

// Guesses one of these tokens at each place behind a prompt.
class SeenDrafter final : public Drafter {
 public:
  SeenDrafter(size_t n_prompt, const std::vector<std::vector<int32_t>>& seen, uint32_t seed)
      : n_prompt_(n_prompt), seen_(seen), random_(seed) {}
  void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) override {
    for (size_t at = text.size() - n_prompt_; at < seen_.size(); ++at) {
      if (!take({seen_[at][random_() % seen_[at].size()], 0})) return;
    }
  }
  bool is_free() const override { return true; }
  double prior(int) const override { return 0.5; }

 private:
  size_t n_prompt_;
  const std::vector<std::vector<int32_t>>& seen_;
  std::mt19937 random_;
};

// Sampled texts of three tokens, of which steps check guesses that are often right and often wrong, are distributed
// like those without guesses of other seeds: chi-squared of two samples.
TEST(SpeculatedDistribution, OfSampledTokens) {
  const test::TempDir directory;
  test::tiny_llama().write(directory.path("tiny.gguf"));
  const auto model = Model::load(directory.path("tiny.gguf"));
  const auto device = cpu::make_cpu_device({1, 1});
  EngineOptions engine;
  engine.context.n_ctx = 64;
  engine.context.n_draft = 2;
  Session session(*model, {device.get()}, engine);
  const std::vector<int32_t> prompt{1, 70, 71, 72};
  SamplerParams params;
  params.temp = 1;
  params.top_k = 3;
  params.top_p = 1;
  params.min_p = 0;
  params.ignore_eos = true;
  GenerateOptions options;
  options.n_predict = 3;
  SpeculationStats brought;
  const auto sampled_text = [&](int64_t seed, Speculation* speculation) {
    session.truncate(0);
    params.seed = seed;
    Sampler sampler(params, sampler_model(session));
    std::vector<int32_t> ids;
    GenerateCallbacks callbacks;
    callbacks.chosen = [&](const Continuation::Choice& choice) { ids.push_back(choice.id); };
    const GenerateStats stats = generate(session, sampler, prompt, options, callbacks, speculation);
    brought.n_checked += stats.speculation.n_checked;
    brought.n_right += stats.speculation.n_right;
    return ids;
  };
  constexpr int kTexts = 4000;
  std::map<std::vector<int32_t>, double> plain, guessed;
  std::vector<std::vector<int32_t>> seen(3);
  for (int i = 0; i < kTexts; ++i) {
    const std::vector<int32_t> ids = sampled_text(i, nullptr);
    plain[ids] += 1;
    for (size_t at = 0; at < 3; ++at) seen[at].push_back(ids[at]);
  }
  for (int i = 0; i < kTexts; ++i) {
    const auto seed = static_cast<uint32_t>(i);
    Speculation speculation(std::make_unique<SeenDrafter>(prompt.size(), seen, seed), 2, Checks::all);
    guessed[sampled_text(kTexts + i, &speculation)] += 1;
  }
  EXPECT_GT(brought.n_right, kTexts / 10);
  EXPECT_GT(brought.n_checked - brought.n_right, kTexts / 10);
  std::map<std::vector<int32_t>, double> all = plain;
  for (const auto& [ids, n] : guessed) all[ids] += n;
  double chi2 = 0;
  for (const auto& [ids, n] : all) chi2 += (plain[ids] - guessed[ids]) * (plain[ids] - guessed[ids]) / n;
  const auto n_cells = static_cast<double>(all.size());
  EXPECT_GE(n_cells, 12);
  EXPECT_LT(chi2, n_cells + 4 * std::sqrt(2 * n_cells));
}

TEST(DraftVocabulary, MustBeTheSame) {
  const test::TempDir directory;
  test::TinyShape shape;
  test::TinyModel tiny = test::tiny_llama(shape);
  tiny.write(directory.path("a.gguf"));
  shape.n_vocab = 290;  // a smaller one with the same beginning
  test::tiny_llama(shape, 2).write(directory.path("b.gguf"));
  const auto a = Model::load(directory.path("a.gguf")), b = Model::load(directory.path("b.gguf"));
  check_same_vocabulary(*b, *a);
  check_same_vocabulary(*a, *b);
  const auto demo = Model::load(test::demo_model());
  try {
    check_same_vocabulary(*demo, *a);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.message(), testing::HasSubstr("cannot guess for"));
  }
}

}  // namespace
}  // namespace tandem
