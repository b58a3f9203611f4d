// Steps that check guesses on several devices: they compute where single tokens are computed, and give the logits of
// single tokens, behind guesses that were taken back too.
#include <gtest/gtest.h>

#include "support/split_rig.h"

namespace tandem {
namespace {

class Guesses : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 4, kGuesses = 6;

  void SetUp() override { load_both(kLayers); }

  // Logits of the last of 37 tokens, and of nine more: one by one, or several in a step, each step with guesses that are wrong
  // and taken back.
  static std::vector<float> one_by_one(Session& session) {
    std::vector<float> all = test_row(session.append(prompt(37)));
    for (const int32_t id : continuation()) append_row(all, session.append(std::span(&id, 1)));
    return all;
  }
  static std::vector<float> checked(Session& session) {
    std::vector<float> all = test_row(session.append(prompt(37)));
    const std::vector<int32_t> ids = continuation();
    size_t at = 0;
    for (const size_t n_right : {2u, 0u, 4u, 1u}) {
      std::vector<int32_t> tokens(ids.begin() + static_cast<int64_t>(at),
                                  ids.begin() + static_cast<int64_t>(at + 1 + n_right));
      while (tokens.size() < kGuesses) tokens.push_back(7);  // wrong
      EXPECT_GE(session.max_checked(), kGuesses);
      const std::span<const float> rows = session.append_all(tokens);
      append_row(all, rows.first(rows.size() / tokens.size() * (1 + n_right)));
      at += 1 + n_right;
      session.truncate(37 + static_cast<int64_t>(at));
    }
    EXPECT_EQ(at, ids.size());
    return all;
  }
  static std::vector<int32_t> continuation() { return {5, 280, 33, 120, 8, 61, 250, 19, 77, 140, 201}; }
  static std::vector<float> test_row(std::span<const float> row) { return {row.begin(), row.end()}; }
  static void append_row(std::vector<float>& to, std::span<const float> row) {
    to.insert(to.end(), row.begin(), row.end());
  }

  void expect_same(const Model& model, const EngineOptions& o, const std::vector<Device*>& devices) {
    Session plain(model, devices, o);
    EngineOptions with = o;
    with.context.n_draft = kGuesses;
    Session guessing(model, devices, with);
    const std::vector<float> expected = one_by_one(plain), found = checked(guessing);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4f) << i;
  }
};

TEST_F(Guesses, WhereverWeightsAreUsed) {
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const int64_t n_gpu_layers : {0, 2, 4}) {
      for (const Streaming streaming : {Streaming::none, Streaming::prefill, Streaming::always}) {
        for (const double decode : {1.0, 0.5}) {
          OffloadChoice choice;
          choice.n_gpu_layers = n_gpu_layers;
          choice.streaming = streaming;
          choice.rows_decode = decode;
          EngineOptions o = options();
          o.placement = place(model->architecture(), model->weights(), devices, {}, choice);
          expect_same(*model, o, devices);
        }
      }
    }
  }
}

// What a step with guesses costs depends on where weights in host memory are used: with streaming of prompts only, it
// must not stream.
TEST_F(Guesses, TakeTheWayOfSingleTokens) {
  std::vector<test::SimTraffic> traffic;
  test::SimDevice sim({.times = {.bus_bytes_per_s = 1e9, .traffic = &traffic}});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadChoice choice;
  choice.n_gpu_layers = 1;
  choice.streaming = Streaming::prefill;
  EngineOptions o = options();
  o.context.n_draft = kGuesses;
  o.placement = place(dense_->architecture(), dense_->weights(), devices, {}, choice);
  Session session(*dense_, devices, o);
  session.append(prompt(37));
  const size_t before = traffic.size();
  EXPECT_GT(before, 0u);
  session.append_all(std::vector<int32_t>{3, 4, 5});
  EXPECT_EQ(traffic.size(), before);
  session.append(prompt(20));
  EXPECT_GT(traffic.size(), before);
}

TEST_F(Guesses, WithCachesOnTheHostAndSplit) {
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  OffloadOptions on_host, split;
  on_host.n_gpu_layers = split.n_gpu_layers = 3;
  on_host.kv_on_host = Toggle::on;
  split.kv_split = 32;
  for (const OffloadOptions& flags : {on_host, split})
    expect_same(*dense_, options(flags, DType::F32), devices);
}

}  // namespace
}  // namespace tandem
