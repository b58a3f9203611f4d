// Every architecture where a text does not run from its start to its end: cut back and continued, saved and
// loaded, and in a batch whose prompts begin alike.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/files.h"
#include "cpu/cpu_device.h"
#include "engine/session_file.h"
#include "kv/block_store.h"
#include "support/batch_rig.h"
#include "support/family_model.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

class FamiliesResume : public test::BatchRig, public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    family_ = test::load_family(GetParam());
    model_ = Model::load(test::convert_family(family_, folder_));
    ids_ = family_.ids();
  }

  Session open(int64_t n_checkpoints = 8) const {
    EngineOptions o;
    o.context.n_state_checkpoints = n_checkpoints;
    o.context.n_ctx = family_.n_ctx();
    o.context.n_ubatch = 24;
    o.context.latent_form = test::form_of(GetParam());
    o.context.n_deferred = family_.n_deferred();
    o.context.k_dtype = o.context.v_dtype = DType::F32;
    return Session(*model_, {host_.get()}, o);
  }

  // Appends the ids from n_past() on, and compares the logits of the last one.
  void expect_same_end(Session& session, const char* what) const {
    const std::span<const float> got =
        session.append(std::span(ids_).subspan(static_cast<size_t>(session.n_past())));
    ASSERT_EQ(got.size(), expected_.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - expected_[i], 2);
      size += std::pow(expected_[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), tolerance()) << what;
  }

  // Products with MXFP4 weights round activations to 8 bits, so a last bit may become a step.
  bool rounds_activations() const { return GetParam() == "gpt_oss"; }
  double tolerance() const { return rounds_activations() ? 3e-2 : 1e-4; }

  test::Family family_;
  test::TempDir folder_;
  std::unique_ptr<Model> model_;
  std::vector<int32_t> ids_;
  std::vector<float> expected_;
};

TEST_P(FamiliesResume, CutBackAndLoaded) {
  Session session = open();
  const std::span<const float> end = session.append(ids_);
  expected_.assign(end.begin(), end.end());
  for (const int64_t n : {71, 33, 32, 7}) {
    session.truncate(n);
    expect_same_end(session, "cut back");
  }
  session.truncate(50);
  save_session(session, folder_.path("saved"));
  Session other = open();
  const SessionFile file(folder_.path("saved"), other);
  file.restore(other, 50);
  expect_same_end(other, "loaded");
  file.restore(other, 20);
  expect_same_end(other, "loaded in part");
}

// A text with recurrent layers is computed again from a checkpoint, not from its start.
TEST_P(FamiliesResume, CutBackToACheckpoint) {
  Session session = open();
  if (!session.kv_config().is_recurrent()) GTEST_SKIP() << "no recurrent layers";
  const std::span<const float> end = session.append(ids_);
  expected_.assign(end.begin(), end.end());
  session.truncate(71);
  EXPECT_EQ(session.n_past(), 71);
  EXPECT_EQ(session.n_cached(), 64);
  expect_same_end(session, "the last token again");
  session.truncate(33);
  EXPECT_EQ(session.n_cached(), 32);
  session.truncate(33);
  session.truncate(32);
  EXPECT_EQ(session.n_cached(), 32);
  expect_same_end(session, "from a border on");
  for (size_t i = 0; i < 40; ++i) session.append(std::span(ids_).subspan(i, 1));  // token by token
  session.truncate(100);
  EXPECT_EQ(session.n_cached(), 96);
  session.truncate(71);
  expect_same_end(session, "after many single tokens");
}

// With fewer checkpoints than a saved file has, and with none.
TEST_P(FamiliesResume, FewCheckpoints) {
  Session session = open();
  if (!session.kv_config().is_recurrent()) GTEST_SKIP() << "no recurrent layers";
  const std::span<const float> end = session.append(ids_);
  expected_.assign(end.begin(), end.end());
  save_session(session, folder_.path("saved"));
  for (const int64_t n_checkpoints : {0, 1}) {
    Session few = open(n_checkpoints);
    const SessionFile file(folder_.path("saved"), few);
    file.restore(few, 72);
    EXPECT_EQ(few.n_cached(), 72);
    few.truncate(71);
    EXPECT_EQ(few.n_cached(), 64);  // the state before the last step
    expect_same_end(few, "few checkpoints");
  }
}

TEST_P(FamiliesResume, InABatchWithSharedBeginnings) {
  if (rounds_activations() || family_.n_ctx() > 0)
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
  const std::vector<std::string> expected = alone(*model_, list);
  EngineOptions o = options(3, 1024);
  o.context.latent_form = test::form_of(GetParam());
  Runtime runtime(*model_, {host_.get()}, o);
  Batcher batcher(runtime);
  EXPECT_EQ(together(batcher, list), expected);
  EXPECT_EQ(batcher.stats().n_reused, 4 * 64);
}

// What one session computed, others load from the store: the whole text, a text that parts from it, and one of which the
// session has the beginning already. Without the newest states, recurrent layers go on from an older one.
TEST_P(FamiliesResume, KeptInAStore) {
  const std::string folder = folder_.path("store");
  BlockStore store(folder);
  const auto n_whole = static_cast<int64_t>(ids_.size() - 1) / 32 * 32;
  ASSERT_GE(n_whole, 64);
  {
    Session first = open();
    first.keep_in(store);
    EXPECT_EQ(first.load_kept(ids_), 0);
    const std::span<const float> end = first.append(ids_);
    expected_.assign(end.begin(), end.end());
    first.keep();
    store.flush();
    EXPECT_EQ(store.counts().n_written,
              static_cast<int64_t>(ids_.size()) / 32 * (first.kv_config().is_recurrent() ? 2 : 1));
  }
  for (const int64_t n_held : {0, 20, 40, 64}) {
    Session session = open();
    session.keep_in(store);
    if (n_held > 0) session.append(std::span(ids_).first(static_cast<size_t>(n_held)));
    EXPECT_EQ(session.load_kept(ids_), n_whole);
    expect_same_end(session, "loaded");
    session.truncate(40);
    expect_same_end(session, "loaded and cut back");
  }
  std::vector<int32_t> other = ids_;
  other[70] = (other[70] + 1) % static_cast<int32_t>(model_->hparams().n_vocab);
  Session parting = open();
  parting.keep_in(store);
  EXPECT_EQ(parting.load_kept(other), 64);
  for (const std::string& path :
       files_in(folder)) {  // of the last block, the state; where there is none, the rows
    const bool is_recurrent = parting.kv_config().is_recurrent();
    if (!path.ends_with(is_recurrent ? ".state" : ".rows")) continue;
    const auto time = std::filesystem::last_write_time(path);
    std::filesystem::resize_file(path, 300);
    std::filesystem::last_write_time(path, time);
  }
  Session session = open();
  session.keep_in(store);
  EXPECT_EQ(session.load_kept(ids_), 0);
  expect_same_end(session, "nothing sound is left");
  EXPECT_GT(store.counts().n_damaged, 0);
}

// Several beginnings, which part in different blocks, and fewer kept states than beginnings.
TEST_P(FamiliesResume, RecurrentTextsThatBeginAlikeInABatch) {
  const Session session = open();
  if (!session.kv_config().is_recurrent()) GTEST_SKIP() << "no recurrent layers";
  std::vector<BatchRequest> list;
  for (size_t i = 0; i < 12; ++i) {
    BatchRequest r;
    r.index = static_cast<int64_t>(i);
    r.prompt.assign(ids_.begin() + static_cast<int64_t>(i % 2), ids_.begin() + 40);
    r.prompt.insert(r.prompt.end(), ids_.begin() + static_cast<int64_t>(i % 3), ids_.begin() + 40);
    for (size_t own = 0; own < i; ++own) r.prompt.push_back(ids_[own * 3 + i]);
    r.sampling.temp = 0;
    r.generation.n_predict = 4;
    list.push_back(r);
  }
  const std::vector<std::string> expected = alone(*model_, list);
  int64_t most = 0;
  for (const int64_t n_states : {8, 2, 1, 0}) {
    EngineOptions o = options(3, 1024);
    o.context.n_state_checkpoints = n_states;
    Runtime runtime(*model_, {host_.get()}, o);
    Batcher batcher(runtime);
    EXPECT_EQ(together(batcher, list), expected) << n_states;
    const int64_t n_reused = batcher.stats().n_reused;
    EXPECT_EQ(n_reused == 0, n_states == 0) << n_reused;
    if (n_states == 8) most = n_reused;
    EXPECT_LE(n_reused, most);
  }
  EXPECT_GE(most, 10 * 32);  // all but the first of each beginning
}

INSTANTIATE_TEST_SUITE_P(All, FamiliesResume, testing::ValuesIn(test::family_names_and_forms()),
                         [](const auto& param_info) { return param_info.param; });

}  // namespace
}  // namespace tandem
