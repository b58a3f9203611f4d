// Spilled caches: what --kv-memory leaves no room for is in a file. Logits, texts, sessions and batches are those of a cache in
// memory, bit for bit; memory is what was planned; failures of the disk are clean errors, and never another token.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "engine/session_file.h"
#include "kv/spill.h"
#include "plan/footprint.h"
#include "support/batch_rig.h"
#include "support/moody_disk.h"
#include "support/sim_disk.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class KvSpillTest : public test::BatchRig {
 protected:
  static constexpr int64_t kLayers = 6, kPositions = 512;
  static constexpr DType kTypes[] = {DType::F16,  DType::F32,  DType::BF16,  DType::Q8_0,
                                     DType::Q5_1, DType::Q4_0, DType::IQ4_NL};

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 2;  // heads of 32: whole blocks of the quantized cache types
    model_ = load("tiny.gguf", shape);
    fs::create_directories(folder_);
  }

  static EngineOptions options(DType cache = DType::F16) {
    EngineOptions o = SplitRig::options({}, cache);
    o.context.n_ctx = kPositions;
    return o;
  }
  // Three of 16 blocks in memory, unless more is asked for: the least for steps of 16 tokens.
  EngineOptions spilled(EngineOptions o = options(), double share = 0.56) {
    const Runtime whole(*model_, {host_.get()}, o);
    o.context.kv_memory = static_cast<size_t>(share * static_cast<double>(whole.kv_bytes()));
    o.context.kv_spill = folder_;
    return o;
  }
  EngineOptions spilled(DType cache) { return spilled(options(cache)); }

  std::vector<float> run(const EngineOptions& o,
                         const std::function<std::vector<float>(Session&)>& use = logits) {
    Session session(*model_, {host_.get()}, o);
    if (o.context.kv_memory) {
      EXPECT_EQ(session.kv_bytes() + session.executor().slot_bytes(DeviceId::host()),
                session.placement().bytes.devices[0].kv + session.placement().bytes.devices[0].staging);
      EXPECT_LE(session.kv_bytes() + session.executor().slot_bytes(DeviceId::host()), *o.context.kv_memory);
      EXPECT_GT(session.kv_config().n_memory_blocks, 0);
    }
    std::vector<float> made = use(session);
    if (o.context.kv_memory) {
      EXPECT_GT(session.executor().disk_bytes(), 0u);
    }
    EXPECT_TRUE(fs::is_empty(folder_)) << "the file has a name";
    return made;
  }

  // Logits after a prompt, decoded tokens, and more prompts that replace some of them; then all is grown again.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    const std::vector<int32_t> ids = prompt(471);
    add(session.append(ids));
    for (int32_t id : {5, 280, 33}) add(session.append(std::span(&id, 1)));
    for (int64_t n : {440, 289, 100, 31, 64}) {
      session.truncate(std::min(n, session.n_past()));
      for (int i = 0; i < 3; ++i)
        add(session.append(std::span(ids).subspan(static_cast<size_t>(40 * i), 21)));
      decode_one(session);
    }
    for (int i = 0; i < 33; ++i) {
      const int32_t id = 3 + i * 11 % 290;
      add(session.append(std::span(&id, 1)));
    }
    return all;
  }

  static std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string failure(const EngineOptions& o, ErrorCode code,
                      const std::function<std::vector<float>(Session&)>& use = logits) {
    try {
      Session session(*model_, {host_.get()}, o);
      use(session);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      return e.what();
    }
    return "no error";
  }

  std::unique_ptr<Model> model_;
  std::string folder_ = directory_.path("spill");
};

TEST_F(KvSpillTest, EveryTypeGivesTheSameBits) {
  for (const DType cache : kTypes) {
    SCOPED_TRACE(dtype_name(cache));
    const std::vector<float> expected = run(options(cache));
    for (const double share : {0.56, 0.7, 0.95})
      EXPECT_EQ(run(spilled(options(cache), share)), expected) << share;
  }
  EngineOptions mixed = options();
  mixed.context.kv_type_layers = {{1, 2, DType::Q4_0, DType::F32}, {4, 4, DType::F32, DType::Q8_0}};
  mixed.context.kv_rotate = Toggle::on;
  EXPECT_EQ(run(spilled(mixed, 0.6)), run(mixed));
}

TEST_F(KvSpillTest, WithALimitThatHoldsAllNothingIsOnDisk) {
  EngineOptions o = spilled(options(), 1.0);
  Session session(*model_, {host_.get()}, o);
  EXPECT_EQ(logits(session), run(options()));
  EXPECT_EQ(session.kv_config().n_memory_blocks, 0);
  EXPECT_EQ(session.executor().disk_bytes(), 0u);
}

// Reads that end in any order, and until then leave garbage.
TEST_F(KvSpillTest, WaitsForReads) {
  const std::vector<float> expected = run(options());
  for (uint64_t seed = 0; seed < 4; ++seed) {
    test::DiskLog log;
    EngineOptions o = spilled();
    o.open_disk = [&](std::vector<DiskFile> files) {
      return std::make_unique<test::MoodyDisk>(std::move(files), seed, &log);
    };
    EXPECT_EQ(run(o), expected);
  }
}

TEST_F(KvSpillTest, GuessesAndShifts) {
  EngineOptions guessing = options(DType::F32);
  guessing.context.n_draft = 3;
  guessing.context.n_ubatch = 16;
  const auto guesses = [](Session& session) {
    session.append(prompt(300));
    session.truncate(0);
    session.append(prompt(400));
    std::vector<float> all;
    for (int i = 0; i < 20; ++i) {
      const std::vector<int32_t> tokens{5 + i, 280, 33, 7};
      const std::span<const float> rows = session.append_all(tokens);
      all.insert(all.end(), rows.begin(), rows.end());
      session.truncate(400 + i + 1);
    }
    return all;
  };
  EXPECT_EQ(run(spilled(guessing, 0.6), guesses), run(guessing, guesses));
  const auto shifts = [](Session& session) {
    session.append(prompt(500));
    EXPECT_TRUE(session.shift(40, 200));
    const std::span<const float> row = session.append(prompt(90));
    return std::vector<float>(row.begin(), row.end());
  };
  EXPECT_EQ(run(spilled(DType::F32), shifts), run(options(DType::F32), shifts));
}

TEST_F(KvSpillTest, SessionsAreSavedAndLoaded) {
  const std::string file = directory_.path("a.session"), other = directory_.path("b.session");
  const std::vector<int32_t> ids = prompt(400), more = prompt(40);
  for (const DType cache : {DType::F16, DType::Q8_0}) {
    Session memory(*model_, {host_.get()}, options(cache)), disk(*model_, {host_.get()}, spilled(cache));
    memory.append(ids);
    disk.append(ids);
    save_session(memory, file);
    save_session(disk, other);
    EXPECT_EQ(bytes_of(file), bytes_of(other));
    const std::span<const float> row = memory.append(more);
    const std::vector<float> expected(row.begin(), row.end());
    const auto resumes = [&](Session& session) {
      const SessionFile saved(file, session);
      saved.restore(session, saved.tokens().size());
      const std::span<const float> got = session.append(more);
      return std::vector<float>(got.begin(), got.end());
    };
    EXPECT_EQ(run(spilled(cache), resumes), expected);
    EXPECT_EQ(run(options(cache), resumes), expected);
  }
}

TEST_F(KvSpillTest, KeptBlocksAreLoaded) {
  const auto reads = [&](Session& session) {
    BlockStore store(directory_.path("store"));
    session.keep_in(store);
    const std::vector<int32_t> ids = prompt(450);
    session.load_kept(ids);
    const std::span<const float> row =
        session.append(std::span(ids).subspan(static_cast<size_t>(session.n_past())));
    session.keep();
    return std::vector<float>(row.begin(), row.end());
  };
  const std::vector<float> computed = run(spilled(), reads), loaded = run(spilled(), reads),
                           memory = run(options(), reads);
  EXPECT_EQ(loaded, memory);
  EXPECT_EQ(loaded.size(), computed.size());
}

TEST_F(KvSpillTest, BatchesWithACommonBeginning) {
  const std::vector<BatchRequest> list = requests(24, 70);
  const std::vector<std::string> expected = alone(*model_, list);
  for (const int64_t n : {1, 3, 6}) {
    EngineOptions o = BatchRig::options(n, 1024);
    o.oom_ladder = false;
    o = spilled(o, 0.65);
    Runtime runtime(*model_, {host_.get()}, o);
    Batcher batcher(runtime);
    EXPECT_EQ(together(batcher, list), expected) << n;
  }
}

TEST_F(KvSpillTest, RefusedInOneSentence) {
  const auto refusal = [&](const std::function<void(EngineOptions&)>& change,
                           ErrorCode code = ErrorCode::usage) {
    EngineOptions o = spilled();
    change(o);
    return failure(o, code);
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context.kv_spill.clear(); }),
              HasSubstr("kv_memory needs a folder"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context.k_dtype = DType::KIVI4; }), HasSubstr("KIVI4"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context.sparse_kv = {4, 16}; }), HasSubstr("sparsely"));
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context.kv_memory = 300 << 10; }, ErrorCode::out_of_memory),
              AllOf(HasSubstr("kv_memory=300.0 KiB"), HasSubstr("needs at least"), HasSubstr("n_ctx=128")));
  EXPECT_THAT(refusal([&](EngineOptions& o) { o.context.kv_spill = folder_ + "/no/such"; }, ErrorCode::io),
              AllOf(HasSubstr("kv_spill=" + folder_), HasSubstr("No such file")));
  EXPECT_THAT(refusal([&](EngineOptions& o) { o.context.kv_spill = model_->path(); }, ErrorCode::io),
              HasSubstr("Not a directory"));
}

// A step takes as long as the disk needs for what is there, or as without it if that is less.
TEST_F(KvSpillTest, PredictedTimes) {
  const auto seconds = [&](EngineOptions o, double disk_bytes_per_s) {
    DeviceRates rates{50e9, 1e12};
    rates.disk_bytes_per_s = disk_bytes_per_s;
    o.rates = {rates};
    const Session session(*model_, {host_.get()}, o);
    return 1 / session.placement().speed.decode_tokens_per_s;
  };
  const double memory = seconds(options(), 1e9);
  EXPECT_NEAR(seconds(spilled(), 1e15), memory, memory / 2);
  // Half of the context and a token: 9 blocks of 8 KiB in each layer, of which those are read that memory does not hold.
  const Session session(*model_, {host_.get()}, spilled());
  const double n_bytes = static_cast<double>((9 - session.kv_config().n_memory_blocks) * 8192 * kLayers);
  EXPECT_NEAR(seconds(spilled(), 1e6), n_bytes / 1e6, 0.01 * n_bytes / 1e6);
}

// With a device, the cache stays on the host, as with -nkvo.
TEST_F(KvSpillTest, BesideADevice) {
  test::SimDevice sim({.copy_bytes_per_s = 3e9});
  EngineOptions o = spilled();
  o.offload.n_gpu_layers = 3;
  Session session(*model_, {host_.get(), &sim}, o);
  EXPECT_EQ(logits(session), run(options()));
  EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
  o.offload.kv_split = 64;
  EXPECT_THROW(Session(*model_, {host_.get(), &sim}, o), Error);
}

// Every read that fails gives an error, and the session goes on afterwards with the right logits.
TEST_F(KvSpillTest, EveryReadThatFails) {
  EngineOptions o = spilled();
  int64_t n_all = 0;
  const auto use = [](Session& session) {
    session.append(prompt(150));
    decode_one(session);
    const std::span<const float> row = session.append(prompt(12));
    return std::vector<float>(row.begin(), row.end());
  };
  const std::vector<float> expected = run(options(), use);
  const auto with = [&](int64_t fail, int64_t& count) {
    o.open_disk = [&, fail](std::vector<DiskFile> files) {
      return std::make_unique<test::SimDisk>(std::move(files),
                                             test::SimDiskOptions{.n_reads = &count, .fail_read = fail});
    };
  };
  with(-1, n_all);
  EXPECT_EQ(run(o, use), expected);
  ASSERT_GT(n_all, 20);
  int64_t n_failed = 0;
  for (int64_t i = 0; i < n_all - 2; ++i) {  // the last two are for a step that never comes
    SCOPED_TRACE(i);
    int64_t count = 0;
    with(i, count);
    Session session(*model_, {host_.get()}, o);
    try {
      EXPECT_EQ(use(session), expected) << "read ahead of a step before which blocks were moved";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      ++n_failed;
    }
    session.truncate(0);
    EXPECT_EQ(use(session), expected);
  }
  EXPECT_GT(n_failed, n_all / 2);
}

// The disk is full: no step writes past a limit of files.
TEST_F(KvSpillTest, AFullDisk) {
  const std::vector<float> expected = run(options());
  EngineOptions o = spilled();
  Session session(*model_, {host_.get()}, o);
  struct sigaction before {};
  struct sigaction ignored {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGXFSZ, &ignored, &before);
  rlimit whole{};
  getrlimit(RLIMIT_FSIZE, &whole);
  for (const rlim_t most : {0, 5000, 100000}) {
    const rlimit little{most, whole.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
    std::string what;
    try {
      logits(session);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      what = e.what();
    }
    setrlimit(RLIMIT_FSIZE, &whole);
    EXPECT_THAT(what, AllOf(HasSubstr("kv_spill=" + folder_), HasSubstr("cannot write the KV cache")))
        << most;
    session.truncate(0);
    EXPECT_EQ(logits(session), expected);
    session.truncate(0);
  }
  sigaction(SIGXFSZ, &before, nullptr);
}

}  // namespace
}  // namespace tandem
