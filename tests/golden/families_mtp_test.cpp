// MTP layers: their logits against those of transformers' layers, the rows that the drafter keeps of a text that is cut and
// continued, and texts with their guesses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/generate.h"
#include "engine/mtp_drafter.h"
#include "support/gguf_bytes.h"
#include "support/hf_folder.h"
#include "support/sim_device.h"
#include "support/tiny_model.h"
#include "tools/convert/convert.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class MtpFamily : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    test::HfFolder folder = test::family_folder(family_);
    folder.config["max_position_embeddings"] = 4096;
    folder.write(directory_.path("hf"));
    convert(true, directory_.path("model.gguf"));
    model_ = Model::load(directory_.path("model.gguf"));
    mtp_ = load_mtp(directory_.path("model.gguf"));
  }
  void convert(bool mtp, const std::string& path) const {
    tools::ConvertOptions options;
    options.type = tools::OutType::F32;
    options.mtp = mtp;
    options.n_threads = 1;
    write_conversion(tools::prepare_conversion(directory_.path("hf"), options), options, path);
  }
  static std::unique_ptr<Model> load_mtp(const std::string& path) {
    ModelOptions options;
    options.path = path;
    options.part = ModelPart::mtp;
    return Model::load(options);
  }
  std::unique_ptr<Session> session(const Model& model, int64_t n_ubatch, OffloadOptions offload = {},
                                   Device* gpu = nullptr, int64_t n_ctx = 512) const {
    EngineOptions options;
    options.context.n_ctx = n_ctx;
    options.context.n_ubatch = n_ubatch;
    options.context.n_draft = 4;
    options.context.keeps_hidden = true;
    options.context.k_dtype = options.context.v_dtype = DType::F32;
    options.offload = offload;
    std::vector<Device*> devices{device_.get()};
    if (gpu) devices.push_back(gpu);
    return std::make_unique<Session>(model, devices, options);
  }
  size_t n_embd() const { return static_cast<size_t>(model_->hparams().n_embd); }

  // What the model makes of these tokens.
  std::vector<float> hidden_of(Session& main, std::span<const int32_t> ids) const {
    std::vector<float> all;
    main.on_hidden([&](int64_t first, std::span<const int32_t> tokens, std::span<const float> hidden) {
      EXPECT_EQ(hidden.size(), tokens.size() * n_embd());
      EXPECT_EQ(static_cast<size_t>(first) * n_embd(), all.size());
      all.insert(all.end(), hidden.begin(), hidden.end());
    });
    main.append(ids);
    main.on_hidden(nullptr);
    return all;
  }
  void expect_row(int64_t row, std::span<const float> logits) const {
    const nlohmann::json& rows = family_.json["mtp"];
    const auto found = rows.find(std::to_string(row));
    if (found == rows.end()) return;
    const auto wanted = found->get<std::vector<float>>();
    ASSERT_EQ(wanted.size(), logits.size());
    const float largest =
        std::abs(*std::ranges::max_element(wanted, {}, [](float x) { return std::abs(x); }));
    for (size_t i = 0; i < wanted.size(); ++i)
      ASSERT_NEAR(logits[i], wanted[i], 1e-3f * largest) << "row " << row << ", token " << i;
    ++n_compared_;
  }
  // All rows, so many at a time, and one that continues from the layer's own result.
  void expect_logits(Session& main, Session& mtp, size_t n_at_once) {
    const std::vector<int32_t> ids = family_.ids();
    const std::vector<float> hidden = hidden_of(main, ids);
    ASSERT_EQ(hidden.size(), ids.size() * n_embd());
    std::span<const float> logits;
    for (size_t i = 0; i + 1 < ids.size(); i += n_at_once) {
      const size_t n = std::min(n_at_once, ids.size() - 1 - i);
      logits =
          mtp.append(std::span(ids).subspan(i + 1, n), std::span(hidden).subspan(i * n_embd(), n * n_embd()));
      expect_row(static_cast<int64_t>(i + n - 1), logits);
    }
    const auto guess = static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin());
    const std::vector<float> own(mtp.hidden().begin(), mtp.hidden().end());
    expect_row(static_cast<int64_t>(ids.size()) - 1, mtp.append(std::span(&guess, 1), own));
  }

  test::Family family_;
  test::TempDir directory_;
  std::unique_ptr<Device> device_ = cpu::make_cpu_device({2, 2});
  std::unique_ptr<Model> model_, mtp_;
  mutable int n_compared_ = 0;
};

TEST_P(MtpFamily, LogitsAreThoseOfTransformers) {
  for (const int64_t n_ubatch : {512, 20, 1}) {
    n_compared_ = 0;
    expect_logits(*session(*model_, n_ubatch), *session(*mtp_, n_ubatch), 1);
    EXPECT_EQ(n_compared_, 8) << n_ubatch;
  }
  for (const size_t n_at_once : {7, 71}) {
    n_compared_ = 0;
    expect_logits(*session(*model_, 33), *session(*mtp_, 33), n_at_once);
    EXPECT_GE(n_compared_, 2) << n_at_once;
  }
}

TEST_P(MtpFamily, TheLayerAndTheModelMayBeOnOtherDevices) {
  OffloadOptions all, half, cache_on_host;
  all.n_gpu_layers = 99;
  half.n_gpu_layers = 2;
  cache_on_host.n_gpu_layers = 99;
  cache_on_host.kv_on_host = Toggle::on;
  for (const OffloadOptions& flags : {all, half, cache_on_host}) {
    test::SimDevice gpu({.memory_bytes = 64 << 20});
    n_compared_ = 0;
    const auto main = session(*model_, 20, flags, &gpu), mtp = session(*mtp_, 20, flags, &gpu);
    expect_logits(*main, *mtp, 1);
    EXPECT_EQ(n_compared_, 8);
    const uint64_t before = main->executor().transfers().n_bytes;
    main->append(std::vector<int32_t>{7});
    EXPECT_EQ(main->executor().transfers().n_bytes - before, main->placement().bytes.per_token.activations);
  }
}

// A model that hands out what it makes of its tokens has the logits of one that does not.
TEST_P(MtpFamily, KeepingHiddenChangesNoLogits) {
  const std::vector<int32_t> ids = family_.ids();
  EngineOptions plain;
  plain.context.n_ctx = 512;
  plain.context.k_dtype = plain.context.v_dtype = DType::F32;
  Session without(*model_, {device_.get()}, plain);
  const auto keeping = session(*model_, 512);
  const std::span<const float> a = without.append(ids), b = keeping->append(ids);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-4f) << i;
}

// After any cuts and continuations, guesses are those of a layer that computes all of its rows at once. A row is missing where a
// text goes on differently than when the row was made: what the model made of that token is gone. (Recurrent layers compute
// some tokens again, and so may have it.)
TEST_P(MtpFamily, GuessesDependOnlyOnTheText) {
  const auto main = session(*model_, 24), mtp = session(*mtp_, 24);
  MtpDrafter drafter(*mtp);
  std::mt19937 random(7);
  std::vector<float> hidden;           // of the model's tokens
  std::vector<int32_t> next(512, -1);  // with which each row was made; -1: not yet
  std::vector<bool> is_missing(512, false);
  main->on_hidden([&](int64_t first, std::span<const int32_t> tokens, std::span<const float> rows) {
    hidden.resize(static_cast<size_t>(first) * n_embd());
    hidden.insert(hidden.end(), rows.begin(), rows.end());
    drafter.add_step(first, tokens, rows);
  });
  const auto n_vocab = static_cast<uint32_t>(model_->hparams().n_vocab);
  const auto token = [&] { return static_cast<int32_t>(random() % n_vocab); };
  const auto append = [&](const std::vector<int32_t>& tokens) {
    const auto first = static_cast<size_t>(main->n_past());
    main->append(tokens);
    if (first > 0 && next[first - 1] >= 0 && next[first - 1] != tokens[0]) is_missing[first - 1] = true;
    for (size_t p = first; p < first + tokens.size(); ++p) {
      next[p] = -1;
      is_missing[p] = false;
    }
  };
  const bool cuts = !main->is_recurrent();
  for (int turn = 0; turn < 40; ++turn) {
    std::vector<int32_t> added(turn % 20 == 0 ? 60 : 1 + random() % 4);
    for (int32_t& id : added) id = token();
    if (main->n_past() > 0 && next[static_cast<size_t>(main->n_past()) - 1] >= 0)
      added[0] = next[static_cast<size_t>(main->n_past()) - 1];
    if (turn % 5 == 4 && cuts) {
      main->truncate(main->n_past() - static_cast<int64_t>(random() % 12));
      added[0] = token();
    }
    append(added);
    std::vector<int32_t> text(main->tokens().begin(), main->tokens().end());
    text.push_back(token());
    std::vector<int32_t> guesses, wanted;
    drafter.draft(text, [&](const Guess& guess) {
      guesses.push_back(guess.id);
      return guesses.size() < 3;
    });
    const auto fresh = session(*mtp_, 512);
    std::vector<int32_t> ids;
    std::vector<float> rows;
    for (size_t p = 0; p + 1 < text.size(); ++p) {
      if (is_missing[p]) continue;
      next[p] = text[p + 1];
      ids.push_back(next[p]);
      rows.insert(rows.end(), hidden.begin() + static_cast<int64_t>(p * n_embd()),
                  hidden.begin() + static_cast<int64_t>((p + 1) * n_embd()));
    }
    std::span<const float> logits = fresh->append(ids, rows);
    while (wanted.size() < 3) {
      wanted.push_back(static_cast<int32_t>(std::ranges::max_element(logits) - logits.begin()));
      const std::vector<float> own(fresh->hidden().begin(), fresh->hidden().end());
      if (wanted.size() < 3) logits = fresh->append(std::span(&wanted.back(), 1), own);
    }
    ASSERT_EQ(guesses, wanted) << "turn " << turn;
    // As after a step whose last guesses were wrong: rows that were handed out, for tokens that go again.
    if (turn % 3 == 0 && cuts) {
      const int64_t n = main->n_past();
      append({text.back(), token(), token()});
      main->truncate(n + 1);
    }
  }
}

// A full context of the layer is given up, and guesses go on.
TEST_P(MtpFamily, AFullContextBeginsAnew) {
  const auto main = session(*model_, 24), mtp = session(*mtp_, 24, {}, nullptr, 64);
  MtpDrafter drafter(*mtp);
  main->on_hidden([&](int64_t first, std::span<const int32_t> tokens, std::span<const float> rows) {
    drafter.add_step(first, tokens, rows);
  });
  int n_guesses = 0;
  for (int turn = 0; turn < 40; ++turn) {
    main->append(std::vector<int32_t>{5 + turn, 6, 7});
    std::vector<int32_t> text(main->tokens().begin(), main->tokens().end());
    text.push_back(8);
    drafter.draft(text, [&](const Guess&) { return ++n_guesses % 3 != 0; });
  }
  EXPECT_GE(n_guesses, 3 * 35);
}

TEST_P(MtpFamily, TextsAreTheSame) {
  for (const float temperature : {0.0f, 0.9f}) {
    std::vector<std::vector<int32_t>> texts;
    for (const bool speculates : {false, true}) {
      const auto main = session(*model_, 24), mtp = session(*mtp_, 24);
      auto drafter = std::make_unique<MtpDrafter>(*mtp);
      main->on_hidden([d = drafter.get()](int64_t first, std::span<const int32_t> tokens,
                                          std::span<const float> rows) { d->add_step(first, tokens, rows); });
      Speculation speculation(std::move(drafter), 3, Speculation::Checks::all);
      SamplerParams sampling;
      sampling.temp = temperature;
      sampling.seed = 3;
      sampling.ignore_eos = true;
      Sampler sampler(sampling, sampler_model(*main));
      GenerateOptions options;
      options.n_predict = 60;
      GenerateCallbacks callbacks;
      std::vector<int32_t>& text = texts.emplace_back();
      callbacks.chosen = [&](const Continuation::Choice& choice) { text.push_back(choice.id); };
      const GenerateStats stats =
          generate(*main, sampler, family_.ids(), options, callbacks, speculates ? &speculation : nullptr);
      if (speculates) {
        EXPECT_GT(stats.speculation.n_checked, 60);
      }
    }
    EXPECT_EQ(texts[0], texts[1]) << temperature;
  }
}

// Of files without the layer, or without a part of it.
TEST_P(MtpFamily, WhatIsMissingIsNamed) {
  const auto error_of = [&](const std::string& path, ErrorCode code) -> std::string {
    try {
      load_mtp(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "";
  };
  const GgufFile file(directory_.path("model.gguf"), OpenOptions{});
  const test::TinyModel good = test::read_model(file);
  int n_tried = 0;
  const std::string norm = GetParam() == "bailing_moe2" ? "layer_output_norm" : "nextn.shared_head_norm";
  for (const std::string& name :
       {std::string("nextn.enorm"), std::string("nextn.hnorm"), std::string("nextn.eh_proj"), norm}) {
    test::TinyModel model = good;
    std::erase_if(model.tensors, [&](const auto& t) { return t.first.ends_with(name + ".weight"); });
    ASSERT_EQ(model.tensors.size() + 1, good.tensors.size());
    model.write(directory_.path("bad.gguf"));
    EXPECT_THAT(error_of(directory_.path("bad.gguf"), ErrorCode::bad_file),
                HasSubstr(name == "layer_output_norm" ? "shared_head_norm.weight" : name + ".weight"));
    Model::load(directory_.path("bad.gguf"));  // the model itself does not need it
    ++n_tried;
  }
  EXPECT_EQ(n_tried, 4);
  if (GetParam() == "glm4_moe" || GetParam() == "bailing_moe2") return;  // whose files always have it
  convert(false, directory_.path("without.gguf"));
  EXPECT_THAT(error_of(directory_.path("without.gguf"), ErrorCode::usage), HasSubstr("has no MTP layers"));
}

INSTANTIATE_TEST_SUITE_P(All, MtpFamily,
                         testing::Values("glm4_moe", "deepseek_v3", "qwen3_next", "qwen3_5", "qwen3_5_moe",
                                         "bailing_moe2"),
                         [](const auto& param_info) { return param_info.param; });

TEST(Mtp, FamiliesWithoutOneSaySo) {
  test::TempDir directory;
  const std::string path = directory.path("tiny.gguf");
  test::tiny_llama().write(path);
  ModelOptions options;
  options.path = path;
  options.part = ModelPart::mtp;
  try {
    Model::load(options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    EXPECT_THAT(e.what(), HasSubstr("tiny.gguf: the file has no MTP layers"));
  }
}

}  // namespace
}  // namespace tandem
