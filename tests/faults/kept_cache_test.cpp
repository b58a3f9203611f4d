// Kept blocks: loaded at any placement, never for another model or other settings, and whatever happens to the files, the
// logits are those of a session that computes everything.
#include "engine/kept_cache.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "engine/batcher.h"
#include "support/batch_rig.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class KeptCaches : public test::SplitRig {
 protected:
  static constexpr int kPrompt = 101;  // three blocks of 32, and some

  void SetUp() override { load_both(4); }

  // The logits after the prompt of a session that loads what there is and keeps what it computes.
  std::vector<float> read_prompt(Session& session, int n = kPrompt) {
    BlockStore store(folder_);
    session.keep_in(store);
    const std::vector<int32_t> ids = prompt(n);
    n_loaded_ = session.load_kept(ids);
    EXPECT_EQ(session.n_past(), n_loaded_);
    const auto logits = session.append(std::span(ids).subspan(n_loaded_));
    session.keep();
    return {logits.begin(), logits.end()};
  }
  std::vector<float> computed(const Model& model, const EngineOptions& of = options(), int n = kPrompt) {
    Session session(model, {host_.get()}, of);
    const auto logits = session.append(prompt(n));
    return {logits.begin(), logits.end()};
  }
  // Where steps are divided in other ways, or a split cache adds up attention in two parts, the last bits differ.
  static void expect_near(const std::vector<float>& got, const std::vector<float>& expected, const std::string& what) {
    ASSERT_EQ(got.size(), expected.size()) << what;
    double error = 0, size = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(got[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 1e-5) << what;
  }
  // Loads nothing and keeps the prompt.
  void keep_prompt(const Model& model, const EngineOptions& of = options()) {
    Session session(model, {host_.get()}, of);
    read_prompt(session);
    EXPECT_EQ(n_loaded_, 0);
  }
  std::vector<std::string> blocks() const {
    std::vector<std::string> paths = files_in(folder_);
    std::erase_if(paths, [](const std::string& path) { return path.ends_with(".lock"); });
    return paths;
  }

  std::string folder_ = directory_.path("store");
  int64_t n_loaded_ = 0;
};

TEST_F(KeptCaches, LoadedInAnotherSession) {
  for (const Model* model : {dense_.get(), moe_.get()}) {
    keep_prompt(*model);
    Session again(*model, {host_.get()}, options());
    EXPECT_EQ(read_prompt(again), computed(*model));
    EXPECT_EQ(n_loaded_, 96);
    EXPECT_EQ(again.n_past(), kPrompt);
  }
  EXPECT_EQ(blocks().size(), 6u);
}

TEST_F(KeptCaches, AsFarAsTheTextIsTheSame) {
  keep_prompt(*dense_);
  BlockStore store(folder_);
  for (const int at : {0, 31, 32, 63, 95, 96, 100}) {
    std::vector<int32_t> ids = prompt(kPrompt);
    ids[static_cast<size_t>(at)] = 299;
    Session session(*dense_, {host_.get()}, options());
    session.keep_in(store);
    EXPECT_EQ(session.load_kept(ids), at / 32 * 32) << at;
    Session other(*dense_, {host_.get()}, options());
    const auto got = session.append(std::span(ids).subspan(session.n_past())), expected = other.append(ids);
    EXPECT_TRUE(std::ranges::equal(got, expected)) << at;
  }
  // The last token is left, for its logits.
  for (const int n : {1, 2, 32, 33, 64, 96, 97}) {
    Session session(*dense_, {host_.get()}, options());
    session.keep_in(store);
    EXPECT_EQ(session.load_kept(prompt(n)), (n - 1) / 32 * 32) << n;
  }
}

// A session that holds the first tokens already, in the middle of a block or not.
TEST_F(KeptCaches, ExtendsASession) {
  keep_prompt(*dense_);
  for (const int held : {1, 31, 32, 40, 64, 90, 97}) {
    Session session(*dense_, {host_.get()}, options());
    session.append(prompt(held));
    expect_near(read_prompt(session), computed(*dense_), std::to_string(held));
    EXPECT_EQ(n_loaded_, std::max(96, held));
  }
}

TEST_F(KeptCaches, OfOtherModelsAndSettingsIsNotLoaded) {
  keep_prompt(*dense_);
  const auto expect_unknown = [&](const Model& model, const EngineOptions& of, const char* what) {
    Session session(model, {host_.get()}, of);
    BlockStore store(folder_);
    session.keep_in(store);
    EXPECT_EQ(session.load_kept(prompt(kPrompt)), 0) << what;
  };
  expect_unknown(*moe_, options(), "another model");
  expect_unknown(*dense_, options({}, DType::F32), "another type of the cache");
  const std::string path = dense_->path();
  const auto load_with = [&](auto&& change) {
    ModelOptions how{.path = path, .open = {}, .overrides = {}, .rope = {}, .part = ModelPart::main};
    change(how);
    return Model::load(how);
  };
  expect_unknown(*load_with([](ModelOptions& o) { o.rope.freq_base = 5000.0f; }), options(), "another RoPE base");
  expect_unknown(*load_with([](ModelOptions& o) { o.rope.freq_scale = 0.5f; }), options(), "another RoPE scale");
  expect_unknown(*load_with([](ModelOptions& o) {
    o.overrides.push_back({"llama.attention.layer_norm_rms_epsilon", 0.01});
  }), options(), "other metadata");
  fs::copy_file(path, directory_.path("copy.gguf"));
  expect_unknown(*Model::load(directory_.path("copy.gguf")), options(), "a copy of the model");
}

// One byte in the middle of a tensor, with the file's modification time set back: its beginning, its size and its tensor
// table are as they were.
TEST_F(KeptCaches, OfAModelEditedInPlaceIsNotLoaded) {
  keep_prompt(*dense_);
  const std::string path = dense_->path();
  dense_.reset();
  const auto time = fs::last_write_time(path);
  const auto n = static_cast<std::streamoff>(fs::file_size(path));
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(n - 1000);
    file.put('x');
  }
  fs::last_write_time(path, time);
  const auto edited = Model::load(path);
  Session session(*edited, {host_.get()}, options());
  EXPECT_EQ(read_prompt(session), computed(*edited));
  EXPECT_EQ(n_loaded_, 0);
}

// Written at one placement, loaded at all others.
TEST_F(KeptCaches, AtEveryPlacement) {
  OffloadOptions split;
  split.n_gpu_layers = 2;
  OffloadOptions all;
  all.n_gpu_layers = 5;
  OffloadOptions on_host = all;
  on_host.kv_on_host = Toggle::on;
  OffloadOptions hot = all;
  hot.kv_split = 40;
  const std::pair<const char*, OffloadOptions> placements[] = {
      {"two layers", split}, {"all", all}, {"cache on the host", on_host}, {"hot and cold", hot}};
  const std::vector<float> expected = computed(*dense_);
  for (const auto& [from, write] : placements) {
    folder_ = directory_.path(std::string("store of ") + from);
    test::SimDevice gpu({});
    Session writer(*dense_, {host_.get(), &gpu}, options(write));
    expect_near(read_prompt(writer), expected, from);
    for (const auto& [to, load] : placements) {
      test::SimDevice other({});
      Session reader(*dense_, {host_.get(), &other}, options(load));
      expect_near(read_prompt(reader), expected, std::string(from) + " to " + to);
      EXPECT_EQ(n_loaded_, 96) << from << " to " << to;
      reader.truncate(40);  // and the hot cache still knows what it has
      expect_near(read_prompt(reader), expected, std::string(from) + " to " + to);
    }
    Session alone(*dense_, {host_.get()}, options());
    expect_near(read_prompt(alone), expected, from);
    EXPECT_EQ(n_loaded_, 96);
  }
}

// Each block in turn: cut short, changed, or gone.
TEST_F(KeptCaches, DamagedBlocksAreComputed) {
  keep_prompt(*dense_);
  const std::vector<float> expected = computed(*dense_);
  for (const std::string& path : blocks()) {
    for (int how = 0; how < 3; ++how) {
      if (how == 0) fs::resize_file(path, fs::file_size(path) / 2);
      if (how == 1) {
        std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(700);
        file.put('x');
      }
      if (how == 2) fs::remove(path);
      for (const int held : {0, 40}) {
        Session session(*dense_, {host_.get()}, options());
        if (held > 0) session.append(prompt(held));
        expect_near(read_prompt(session), expected, path);
        EXPECT_LT(n_loaded_, 96 + held);
      }
      EXPECT_EQ(blocks().size(), 3u) << "is written again";
    }
  }
}

// A copy of a block that fails leaves a session that can be used. (Copies before are of weights; their failure may show at
// the first wait after them.)
TEST_F(KeptCaches, FailedCopies) {
  keep_prompt(*dense_);
  const std::vector<float> expected = computed(*dense_);
  const std::vector<int32_t> ids = prompt(kPrompt);
  OffloadOptions all;
  all.n_gpu_layers = 5;
  BlockStore store(folder_);
  test::SimDevice works({});
  Session whole(*dense_, {host_.get(), &works}, options(all));
  whole.keep_in(store);
  const int64_t first = works.n_copies();
  EXPECT_EQ(whole.load_kept(ids), 96);
  const int64_t end = works.n_copies();
  EXPECT_EQ(end - first, 4 * 2 * 3);  // layers, keys and values, blocks
  for (int64_t i = first; i < end; ++i) {
    test::SimDevice gpu({.fail_copy = i});
    Session session(*dense_, {host_.get(), &gpu}, options(all));
    session.keep_in(store);
    EXPECT_THROW(session.load_kept(ids), Error) << i;
    EXPECT_EQ(session.n_past(), (i - first) / 8 * 32) << i;
    const auto logits = session.append(std::span(ids).subspan(session.n_past()));
    expect_near({logits.begin(), logits.end()}, expected, std::to_string(i));
  }
}

class KeptBatches : public test::BatchRig {
 protected:
  void SetUp() override { load_both(2); }
};

// The first batch keeps what its texts have in common, a second one loads it; the answers are the same.
TEST_F(KeptBatches, KeepWhatTextsHaveInCommon) {
  const std::vector<BatchRequest> list = requests(8, 70);
  const std::vector<std::string> expected = alone(*moe_, list);
  const std::string folder = directory_.path("store");
  for (const int64_t n_loaded : {0, 64}) {
    BlockStore store(folder);
    Runtime runtime(*moe_, {host_.get()}, options(4));
    Batcher batcher(runtime, 4, &store);
    EXPECT_EQ(together(batcher, list), expected);
    EXPECT_EQ(batcher.stats().n_loaded, n_loaded);
    EXPECT_EQ(batcher.stats().n_reused, 7 * 64 + n_loaded);
    store.flush();
    EXPECT_EQ(store.contents().at(0).n_blocks, 2);
  }
}

// In a cache with room for little more than one text.
TEST_F(KeptBatches, LoadInASmallCache) {
  std::vector<BatchRequest> list = requests(12, 70);
  for (BatchRequest& r : list) r.generation.n_predict = 150;
  const std::vector<std::string> expected = alone(*dense_, list);
  for (int i = 0; i < 2; ++i) {
    BlockStore store(directory_.path("store"));
    Runtime runtime(*dense_, {host_.get()}, options(6, 288));
    Batcher batcher(runtime, 6, &store);
    EXPECT_EQ(together(batcher, list), expected);
    EXPECT_EQ(batcher.stats().n_loaded > 0, i == 1);
  }
}

}  // namespace
}  // namespace tandem
