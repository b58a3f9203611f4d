// Split caches: the newest tokens (hot) are on a simulated device and older ones (cold) on the host, and each
// side computes its own attention. Logits and texts equal the CPU's with every cache type, split point and
// truncation; bytes match the footprint; failures are clean.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "cpu/isa.h"
#include "engine/session_file.h"
#include "support/split_rig.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class KvSplit : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 5, kContext = 320, kBlock = 32;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 2;  // heads of 32: whole blocks of the quantized cache types
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(const OffloadOptions& flags, DType cache = DType::F16) {
    EngineOptions o = SplitRig::options(flags, cache);
    o.context.n_ctx = kContext;
    return o;
  }

  static OffloadOptions split(int64_t n_gpu_layers, int64_t n_keep, Toggle stream = Toggle::off) {
    OffloadOptions flags;
    flags.n_gpu_layers = n_gpu_layers;
    flags.kv_split = n_keep;
    flags.stream = stream;
    return flags;
  }

  // Logits after a prompt, some decoded tokens, and more prompts that replace some of them.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    const std::vector<int32_t> ids = prompt(171);
    add(session.append(ids));
    for (int32_t id : {5, 280, 33}) add(session.append(std::span(&id, 1)));
    for (int64_t n : {150, 77, 20}) {
      session.truncate(n);
      add(session.append(std::span(ids).first(21)));
    }
    return all;
  }

  std::vector<float> cpu_logits(DType cache = DType::F16) {
    Session session(*model_, {host_.get()}, options({}, cache));
    return logits(session);
  }

  // The largest difference relative to the largest logit. Merging rounds differently from one sum.
  static double difference(std::span<const float> got, std::span<const float> want) {
    EXPECT_EQ(got.size(), want.size());
    double most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_TRUE(std::isfinite(got[i]));
      most = std::max<double>(most, std::fabs(got[i] - want[i]));
      largest = std::max<double>(largest, std::fabs(want[i]));
    }
    return most / largest;
  }

  // Greedy tokens.
  static std::vector<int32_t> text(Session& session, int n_prompt, size_t n) {
    std::vector<int32_t> made;
    std::span<const float> row = session.append(prompt(n_prompt));
    while (made.size() < n) {
      made.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      row = session.append(std::span(&made.back(), 1));
    }
    return made;
  }

  std::unique_ptr<Model> model_;
};

TEST_F(KvSplit, EveryCacheTypeAndSizeGivesTheLogitsOfTheCpu) {
  test::SimDevice sim({.copy_bytes_per_s = 3e9});
  const std::vector<Device*> devices{host_.get(), &sim};
  // In many steps the sums differ in a last bit, which bf16 or the cache's type may turn into one of their own: of Q4_0 into an eighth
  // of the greatest of 32 columns, of Q5_1 into a 31st of their range, half as much.
  const double of_others = cpu::best_isa() >= cpu::Isa::avx512_bf16 ? 1e-3 : 1e-4;
  double worst = 0;
  for (DType cache : {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q5_1, DType::Q4_0}) {
    const std::vector<float> expected = cpu_logits(cache);
    const double allowed = (cache == DType::Q4_0 ? 4 : cache == DType::Q5_1 ? 2 : 1) * of_others;
    for (int64_t n_gpu_layers : {1, 3, 6}) {
      for (int64_t n_keep : {1, 31, 33, 100, 200, 319, 320, 100000}) {
        SCOPED_TRACE(std::string(dtype_name(cache)) + " -ngl " + std::to_string(n_gpu_layers) +
                     " --kv-split " + std::to_string(n_keep));
        Session s(*model_, devices, options(split(n_gpu_layers, n_keep), cache));
        const double apart = difference(logits(s), expected);
        EXPECT_LE(apart, allowed);
        worst = std::max(worst, apart);
        EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
        if (n_keep >= kContext) {
          EXPECT_EQ(apart, 0);  // all on the device
        }
      }
    }
  }
  EXPECT_GT(worst, 0);  // the results were merged
  RecordProperty("worst_difference", std::to_string(worst));
}

TEST_F(KvSplit, WithStreamedWeightsAndOnTwoDevices) {
  const std::vector<float> expected = cpu_logits();
  test::SimDevice sim0({.name = "SIM0", .copy_bytes_per_s = 3e9}),
      sim1({.name = "SIM1", .copy_bytes_per_s = 3e9});
  for (Toggle stream : {Toggle::off, Toggle::on}) {
    for (int64_t n_keep : {1, 50}) {
      Session one(*model_, {host_.get(), &sim0}, options(split(3, n_keep, stream)));
      EXPECT_LE(difference(logits(one), expected), 1e-4);
      EXPECT_EQ(sim0.used_bytes(), one.placement().bytes.devices[1].total());
      Session two(*model_, {host_.get(), &sim1, &sim0}, options(split(6, n_keep, stream)));
      EXPECT_LE(difference(logits(two), expected), 1e-4);
      EXPECT_EQ(sim1.used_bytes(), two.placement().bytes.devices[1].total());
      EXPECT_GT(two.placement().bytes.devices[1].kv, 0u);
      EXPECT_GT(two.placement().bytes.devices[2].kv, 0u);
    }
  }
}

TEST_F(KvSplit, WithExpertsAndNamedTensorsElsewhere) {
  test::TinyShape shape;
  shape.n_layer = 3;
  shape.n_expert = 4;
  shape.n_expert_used = 2;
  const auto moe = load("moe.gguf", shape);
  Session alone(*moe, {host_.get()}, options({}));
  const std::vector<float> expected = logits(alone);
  test::SimDevice sim({});
  for (const char* names :
       {"blk\\.1\\.attn_q\\.", "blk\\.[01]\\.attn_(q|k|v|output)\\.", "blk\\.2\\.attn_norm"}) {
    OffloadOptions flags = split(4, 40);
    flags.n_cpu_moe = 2;
    flags.tensor_overrides = {{names, "CPU"}};
    Session s(*moe, {host_.get(), &sim}, options(flags));
    EXPECT_LE(difference(logits(s), expected), 1e-3) << names;  // AMX rounds to bf16
    EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
  }
}

TEST_F(KvSplit, TextsEqualThoseOfTheCpu) {
  Session alone(*model_, {host_.get()}, options({}));
  const std::vector<int32_t> expected = text(alone, 60, 200);
  EXPECT_GT(std::set<int32_t>(expected.begin(), expected.end()).size(), 5u);  // in which mistakes would show
  test::SimDevice sim({});
  for (int64_t n_gpu_layers : {2, 6}) {
    for (int64_t n_keep : {1, 40, 150}) {
      Session s(*model_, {host_.get(), &sim}, options(split(n_gpu_layers, n_keep)));
      EXPECT_EQ(text(s, 60, 200), expected) << n_gpu_layers << " " << n_keep;
    }
  }
}

TEST_F(KvSplit, TextsOfATrainedModelEqualThoseOfTheCpu) {
  const test::TempDir directory;
  test::write_demo_f32(directory.path("demo.gguf"));
  const auto demo = Model::load(directory.path("demo.gguf"));
  const std::vector<int32_t> ids = test::demo_golden().ids;
  const auto made = [&](Session& session) {
    std::vector<int32_t> tokens(ids.begin(), ids.begin() + 5);
    std::span<const float> row = session.append(tokens);
    for (int i = 0; i < 150; ++i) {
      tokens.push_back(static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin()));
      row = session.append(std::span(&tokens.back(), 1));
    }
    return tokens;
  };
  Session alone(*demo, {host_.get()}, options({}));
  const std::vector<int32_t> expected = made(alone);
  test::SimDevice sim({});
  for (int64_t n_gpu_layers : {2, 99}) {
    for (int64_t n_keep : {1, 32, 100}) {
      Session s(*demo, {host_.get(), &sim}, options(split(n_gpu_layers, n_keep)));
      EXPECT_EQ(made(s), expected) << n_gpu_layers << " " << n_keep;
    }
  }
}

TEST_F(KvSplit, TruncatedAnywhere) {
  const std::vector<int32_t> ids = prompt(170);
  test::SimDevice sim({});
  Session alone(*model_, {host_.get()}, options({}));
  // A hot cache of 3 blocks: with 170 tokens the split is at 96.
  Session s(*model_, {host_.get(), &sim}, options(split(6, 40)));
  for (int64_t n = 170; n >= 0; n -= n > 140 || n < 50 ? 7 : 1) {
    for (Session* session : {&s, &alone}) {  // back to all of the prompt
      if (session->n_past() == 170) continue;
      session->append(std::span(ids).subspan(static_cast<size_t>(session->n_past())));
    }
    for (int more : {1, 20, 40}) {
      s.truncate(n);
      alone.truncate(n);
      const std::span<const float> want = alone.append(prompt(more));
      EXPECT_LE(difference(s.append(prompt(more)), want), 1e-4) << "at " << n << ", then " << more;
    }
    s.truncate(n);
    alone.truncate(n);
  }
}

TEST_F(KvSplit, SavedAndRestored) {
  test::SimDevice sim({});
  const auto next = [](Session& session) {
    const std::vector<int32_t> more{5, 280, 33};
    const auto row = session.append(more);
    return std::vector<float>(row.begin(), row.end());
  };
  const std::vector<int32_t> ids = prompt(150);
  for (DType cache : {DType::F16, DType::Q8_0}) {
    Session alone(*model_, {host_.get()}, options({}, cache));
    alone.append(prompt(150));
    Session s(*model_, {host_.get(), &sim}, options(split(4, 33), cache));
    s.append(prompt(150));
    // Keys and values of the first layer do not depend on attention: they are bit-identical on both sides.
    for (const KvHalf half : {KvHalf::keys, KvHalf::values}) {
      for (int64_t n : {150, 149, 113, 97, 70, 50, 33, 32}) {
        s.truncate(n);
        std::vector<std::byte> want(kv_token_bytes(kv_layer_shape(s.kv_config(), 0), half) * ids.size()),
            got = want;
        alone.read_kv(0, half, want.data());
        s.read_kv(0, half, got.data());
        want.resize(want.size() / ids.size() * static_cast<size_t>(n));
        got.resize(want.size());
        EXPECT_TRUE(got == want) << n;
        s.truncate(n / 16 * 16);  // in the same micro-batches as before
        s.append(std::span(ids).subspan(static_cast<size_t>(s.n_past())));
      }
    }
    const std::string path = directory_.path("saved");
    save_session(s, path, "");
    const std::vector<float> expected = next(alone);
    for (int64_t n_keep : {0, 1, 60, 149}) {  // 0: into a session on the host
      Session other(*model_, {host_.get(), &sim},
                    options(n_keep == 0 ? split(0, 1) : split(6, n_keep), cache));
      other.append(prompt(n_keep == 60 ? 40 : 200));  // replaced by the restore
      SessionFile(path, other).restore(other, 150);
      EXPECT_LE(difference(next(other), expected), 1e-4) << n_keep;
      SessionFile(path, other).restore(other, 75);
      Session half(*model_, {host_.get()}, options({}, cache));
      half.append(prompt(75));
      EXPECT_LE(difference(next(other), next(half)), 1e-4) << n_keep;
    }
  }
}

// ---- Bytes ----

TEST_F(KvSplit, BytesMatchTheFootprint) {
  for (int64_t n_gpu_layers : {1, 3, 6}) {
    SCOPED_TRACE(n_gpu_layers);
    test::SimDevice sim({});
    Session s(*model_, {host_.get(), &sim}, options(split(n_gpu_layers, 50)));
    const Footprint& planned = s.placement().bytes;
    const SplitKv split_at = *s.placement().placement.split();
    EXPECT_EQ(split_at.n_keep, 50);
    EXPECT_EQ(split_at.n_blocks,
              4);  // 50 + 16 tokens from any start: 65 after the first take 3 blocks, plus one
    EXPECT_EQ(s.kv_bytes(), planned.devices[0].kv + planned.devices[1].kv);
    s.append(prompt(3 * kBlock));
    const uint64_t none = s.executor().transfers().n_bytes;
    decode_one(s);
    const uint64_t while_hot = s.executor().transfers().n_bytes - none;
    s.append(prompt(70));
    const BusBytes& bus = planned.per_token;
    uint64_t copied = sim.copied_bytes(), crossed = s.executor().transfers().n_bytes;
    for (int i = 0; i < 100; ++i) {
      const int64_t before = hot_from_of(s.kv_config(), split_at.n_blocks, s.n_past());
      decode_one(s);
      const int64_t from = hot_from_of(s.kv_config(), split_at.n_blocks, s.n_past());
      EXPECT_GT(from, 0);
      const auto n_blocks = static_cast<uint64_t>((s.n_past() - from + kBlock - 1) / kBlock);
      const auto n_moved = static_cast<uint64_t>((from - before) / kBlock);
      EXPECT_EQ(sim.copied_bytes() - copied, bus.activations + bus.logits + bus.inputs +
                                                 n_blocks * bus.inputs_per_hot_block +
                                                 n_moved * bus.kv_moved_per_block)
          << s.n_past();
      EXPECT_EQ(s.executor().transfers().n_bytes - crossed, bus.activations);
      copied = sim.copied_bytes();
      crossed = s.executor().transfers().n_bytes;
    }
    // No copies while all tokens are in the hot cache.
    if (n_gpu_layers > kLayers) {
      EXPECT_LT(while_hot, bus.activations);
    }
    EXPECT_EQ(sim.peak_bytes(), planned.devices[1].total());
  }
}

TEST_F(KvSplit, ThePartsHaveTheRequiredSize) {
  KvConfig kv;
  kv.n_ctx = 10000;
  EXPECT_EQ(hot_block_count(kv, 1, 1), 2);
  EXPECT_EQ(hot_block_count(kv, 32, 1), 2);  // 33 tokens in a row: at most two blocks
  EXPECT_EQ(hot_block_count(kv, 33, 1), 3);
  EXPECT_EQ(hot_block_count(kv, 1, 512), 17);
  EXPECT_EQ(hot_block_count(kv, 10000, 1), 313);
  EXPECT_EQ(hot_block_count(kv, 9999, 512), 313);
  for (int64_t n_keep : {1, 31, 32, 33, 100}) {
    for (int64_t n_ubatch : {1, 2, 32, 50}) {
      const int64_t n_blocks = hot_block_count(kv, n_keep, n_ubatch);
      for (int64_t n_past = 0; n_past < 500; ++n_past) {
        const int64_t from = hot_from_of(kv, n_blocks, n_past + n_ubatch);
        EXPECT_LE(from, std::max<int64_t>(0, n_past - n_keep));
        EXPECT_LE(n_past + n_ubatch, from + n_blocks * kv.block_size);
      }
    }
  }
}

TEST_F(KvSplit, ExplainShowsBothParts) {
  test::SimDevice sim({});
  std::string table;
  Session s(*model_, {host_.get(), &sim}, options(split(6, 50)), [&](const std::string& t) { table = t; });
  EXPECT_THAT(
      table,
      HasSubstr("the newest 50 tokens' cache is on the GPU, and up to 128, the older ones' on the CPU"));
  EXPECT_THAT(
      table, HasSubstr("for every 32 tokens " +
                       std::to_string(s.placement().bytes.per_token.kv_moved_per_block) + " bytes of cache"));
}

// ---- Failures ----

TEST_F(KvSplit, FailedAllocationsAndCopiesAreCleanErrors) {
  const auto run = [&](test::SimDevice& sim) {
    Session s(*model_, {host_.get(), &sim}, options(split(4, 20)));
    logits(s);
  };
  expect_clean_failures(run, 7);
}

// A failed step changes nothing: repeating it gives the right result.
TEST_F(KvSplit, AFailedCopyChangesNothing) {
  Session alone(*model_, {host_.get()}, options({}));
  alone.append(prompt(130));
  const std::vector<int32_t> more = prompt(40);
  const std::vector<float> expected = [&] {
    const auto row = alone.append(more);
    return std::vector<float>(row.begin(), row.end());
  }();
  test::SimDevice works({});
  int64_t first, last;
  {
    Session s(*model_, {host_.get(), &works}, options(split(6, 20)));
    s.append(prompt(130));
    first = works.n_copies();
    s.append(more);
    last = works.n_copies();
  }
  for (int64_t i = first; i < last; i += 3) {
    test::SimDevice sim({.fail_copy = i});
    Session s(*model_, {host_.get(), &sim}, options(split(6, 20)));
    s.append(prompt(130));
    try {
      s.append(more);
      FAIL() << i;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
    }
    s.truncate(130);
    EXPECT_LE(difference(s.append(more), expected), 1e-4) << "copy " << i;
  }
}

class KvSplitLadder : public KvSplit {
 protected:
  static EngineOptions with_ladder() {
    EngineOptions o = options(split(6, 20));
    o.oom_ladder = true;
    return o;
  }
  std::vector<int32_t> run(test::SimDevice& sim) {
    Session session(*model_, {host_.get(), &sim}, with_ladder());
    std::vector<int32_t> made = text(session, 100, 200);
    EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
    return made;
  }
};

TEST_F(KvSplitLadder, TextsStayTheSame) {
  test::SimDevice works({});
  const std::vector<int32_t> expected = run(works);
  for (int64_t i = 0; i < works.n_allocs(); ++i) {
    test::SimDevice sim({.fail_alloc = i});
    EXPECT_EQ(run(sim), expected) << "allocation " << i;
  }
  for (int64_t i = 0; i < works.n_runs(); i += works.n_runs() / 13) {
    test::SimDevice sim({.fail_run = i});
    EXPECT_EQ(run(sim), expected) << "run " << i;
  }
}

TEST_F(KvSplitLadder, TheCacheMovesToTheHostWithItsContents) {
  test::SimDevice works({});
  const std::vector<int32_t> expected = run(works);
  test::SimDevice sim({.fail_run = works.n_runs() * 3 / 4});
  const std::string log = directory_.path("log");
  set_log_file(log);
  Session session(*model_, {host_.get(), &sim}, with_ladder());
  EXPECT_EQ(text(session, 100, 200), expected);
  EXPECT_EQ(session.placement().bytes.devices[1].kv, 0u);
  EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
  for (const LayerPlacement& layer : session.placement().placement.layers)
    EXPECT_EQ(layer.weights, WeightHome(Resident{GpuId(0)}));
  std::ifstream file(log);
  const std::string lines((std::istreambuf_iterator<char>(file)), {});
  EXPECT_THAT(lines, HasSubstr("the KV cache goes to host memory"));
}

}  // namespace
}  // namespace tandem
