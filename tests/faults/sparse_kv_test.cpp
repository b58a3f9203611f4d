// Caches that are read sparsely (--sparse-kv): dense where nothing is left out, bytes as counted and planned, the same at every
// placement that has the CPU read, and kept true by everything that writes rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "device/kv_index.h"
#include "engine/session_file.h"
#include "kv/block_store.h"
#include "plan/kv_formats.h"
#include "plan/node_work.h"
#include "support/batch_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;
using Logits = std::vector<float>;

constexpr SparseReads kReads{8, 40}, kCovering{8, 1000};

class SparseKv : public test::BatchRig {
 protected:
  static constexpr int64_t kLayers = 3, kHeads = 2, kHeadDim = 32, kTokens = 512;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_embd = 128;
    shape.n_head = 4;
    shape.n_head_kv = kHeads;
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(const SparseReads& reads, const OffloadOptions& flags = {}) {
    EngineOptions o = SplitRig::options(flags);
    o.context.n_ctx = kTokens;
    o.context.sparse_kv = reads;
    return o;
  }

  // After a prompt of n tokens, and after each of `n_more`.
  static Logits logits(Session& session, int n = 230, int n_more = 5) {
    session.append(prompt(n));
    return more(session, n_more);
  }
  static Logits more(Session& session, int n) {
    Logits all;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t id = 5 + 31 * i % 290;
      const std::span<const float> row = session.append(std::span(&id, 1));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  Logits logits_of(const EngineOptions& o) {
    Session session(*model_, {host_.get()}, o);
    return logits(session);
  }

  static double difference(std::span<const float> got, std::span<const float> want) {
    EXPECT_EQ(got.size(), want.size());
    double most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      most = std::max<double>(most, std::fabs(got[i] - want[i]));
      largest = std::max<double>(largest, std::fabs(want[i]));
    }
    return most / largest;
  }

  std::string refusal(const std::vector<Device*>& devices, const EngineOptions& o) {
    try {
      const Session session(*model_, devices, o);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "not refused";
  }

  std::unique_ptr<Model> model_;
};

TEST_F(SparseKv, WithEveryPositionChosenItIsDense) {
  const Logits dense = logits_of(options({}));
  EXPECT_EQ(logits_of(options(kCovering)), dense);
  const Logits sparse = logits_of(options(kReads));
  EXPECT_NE(sparse, dense);
  EXPECT_GT(difference(sparse, dense), 1e-3);
  // With all components it is the large weights that are read.
  EXPECT_LT(difference(logits_of(options({kHeadDim, 150})), dense),
            difference(logits_of(options({1, 1})), dense));
}

TEST_F(SparseKv, PromptsAreDense) {
  Session dense(*model_, {host_.get()}, options({})), sparse(*model_, {host_.get()}, options(kReads));
  const std::span<const float> row = dense.append(prompt(300));
  const Logits expected(row.begin(), row.end());
  const std::span<const float> got = sparse.append(prompt(300));
  EXPECT_EQ(Logits(got.begin(), got.end()), expected);
}

TEST_F(SparseKv, ReadsTheBytesThatAreCountedAndPlanned) {
  int64_t n_read = 0;
  cpu::CpuOptions cpu;
  cpu.n_threads = cpu.n_threads_batch = 2;
  cpu.cache_observer = [&](int64_t n_bytes) { n_read += n_bytes; };
  const auto host = cpu::make_cpu_device(cpu);
  for (const DType dtype : {DType::F16, DType::Q8_0}) {
    EngineOptions o = options(kReads);
    o.context.k_dtype = o.context.v_dtype = dtype;
    Session session(*model_, {host.get()}, o);
    session.append(prompt(300));
    n_read = 0;
    decode_one(session);  // the 301st position
    const auto row = static_cast<int64_t>(row_bytes(dtype, kHeadDim));
    // 8 bytes and a scale of each position, a mean of half floats of each of 9 blocks, and the rows of 4 + 10 + 40 positions.
    const int64_t of_head = 301 * (8 + 4) + 9 * kHeadDim * 2 + (4 + 10 + 40) * 2 * row;
    EXPECT_EQ(n_read, kLayers * kHeads * of_head);

    const SessionGraphs graphs = session_graphs(model_->architecture(), o.context);
    double planned = 0, on_gpu = 0;
    for (const Node& node : graphs.decode.nodes) {
      if (!std::holds_alternative<AttentionOp>(node.op)) continue;
      planned += node_work(graphs.decode, node, {.n_past = 300}, graphs.kv).n_bytes;
      on_gpu += node_work(graphs.decode, node, {.n_past = 300}, graphs.kv, DeviceId::at(1)).n_bytes;
    }
    EXPECT_EQ(planned, static_cast<double>(n_read));
    EXPECT_EQ(on_gpu, static_cast<double>(kLayers * kHeads * 301 * 2 * row));
  }
}

TEST_F(SparseKv, TheIndexIsAPlannedPartOfTheCache) {
  Session dense(*model_, {host_.get()}, options({})), sparse(*model_, {host_.get()}, options(kReads));
  KvLayer layer = kv_layer_shape(sparse.kv_config(), 0);
  layer.indexed = true;
  const size_t index = kv_index_bytes(layer);
  EXPECT_EQ(index, static_cast<size_t>(kHeads * (kHeadDim + 4) * (kTokens + 64) +
                                       kHeads * kTokens / 32 * kHeadDim * 2));
  EXPECT_EQ(sparse.kv_bytes(), dense.kv_bytes() + kLayers * index);
  EXPECT_EQ(sparse.placement().bytes.devices[0].kv, sparse.kv_bytes());
}

TEST_F(SparseKv, PlacementsThatHaveTheCpuReadGiveTheLogitsOfTheCpu) {
  const Logits expected = logits_of(options(kReads)), covered = logits_of(options({kHeadDim, 150}));
  for (const int64_t ngl : {int64_t{1}, int64_t{2}, kLayers + 1}) {
    SCOPED_TRACE(testing::Message() << "-ngl " << ngl);
    OffloadOptions flags;
    flags.n_gpu_layers = ngl;
    flags.kv_on_host = Toggle::on;
    test::SimDevice sim({});
    Session session(*model_, {host_.get(), &sim}, options(kReads, flags));
    EXPECT_EQ(logits(session), expected);
    EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
    size_t kv = 0;
    for (const DeviceBytes& bytes : session.placement().bytes.devices) kv += bytes.kv;
    EXPECT_EQ(session.kv_bytes(), kv);

    // The newest positions are on the GPU, which reads all of them.
    flags.kv_on_host = Toggle::automatic;
    flags.kv_split = 20;
    test::SimDevice other({});
    Session split(*model_, {host_.get(), &other}, options({kHeadDim, 150}, flags));
    const Logits got = logits(split);
    EXPECT_LT(difference(got, covered), 0.25);
    kv = 0;
    for (const DeviceBytes& bytes : split.placement().bytes.devices) kv += bytes.kv;
    EXPECT_EQ(split.kv_bytes(), kv);
    Session covers(*model_, {host_.get(), &other}, options(kCovering, flags));
    const Logits all = logits(covers);
    EXPECT_LT(difference(all, logits_of(options({}))), 1e-4);
    EXPECT_GT(difference(got, all), 1e-3) << "the cold cache is not read sparsely";
  }
}

// Layers whose cache is on a GPU are read densely there.
TEST_F(SparseKv, AGpusOwnCachesAreDense) {
  OffloadOptions flags;
  flags.n_gpu_layers = 1;
  test::SimDevice sim({});
  Session session(*model_, {host_.get(), &sim}, options(kReads, flags));
  EXPECT_NE(logits(session), logits_of(options({})));
  EXPECT_EQ(sim.used_bytes(), session.placement().bytes.devices[1].total());
}

TEST_F(SparseKv, TextsThatAreCutBackGoOnAsIfNothingHadBeen) {
  Session straight(*model_, {host_.get()}, options(kReads));
  const Logits expected = logits(straight, 200, 40);
  for (const int64_t cut : {200, 210, 223}) {
    Session session(*model_, {host_.get()}, options(kReads));
    session.append(prompt(200));
    more(session, static_cast<int>(cut - 200));
    for (const int32_t id : {90, 91, 92, 93}) session.append(std::span(&id, 1));
    for (int32_t i = 0; i < 60; ++i) {
      const int32_t id = 100 + i;
      session.append(std::span(&id, 1));
    }
    session.truncate(cut);
    Logits got;
    for (int64_t i = cut - 200; i < 40; ++i) {
      const int32_t id = static_cast<int32_t>(5 + 31 * i % 290);
      const std::span<const float> row = session.append(std::span(&id, 1));
      got.insert(got.end(), row.begin(), row.end());
    }
    const Logits rest(expected.end() - static_cast<int64_t>(got.size()), expected.end());
    EXPECT_EQ(got, rest) << "cut back to " << cut;
  }
}

TEST_F(SparseKv, SavedAndLoadedSessionsGoOnTheSame) {
  const std::string path = directory_.path("saved");
  Session first(*model_, {host_.get()}, options(kReads));
  logits(first, 230, 7);
  save_session(first, path);
  const Logits expected = more(first, 30);
  Session second(*model_, {host_.get()}, options(kReads));
  SessionFile(path, second).restore(second, 237);
  EXPECT_EQ(more(second, 30), expected);

  OffloadOptions split;
  split.n_gpu_layers = kLayers + 1;
  split.kv_split = 64;
  test::SimDevice sim({});
  Session third(*model_, {host_.get(), &sim}, options({kHeadDim, 150}, split));
  SessionFile(path, third).restore(third, 237);
  Session fourth(*model_, {host_.get()}, options({kHeadDim, 150}));
  SessionFile(path, fourth).restore(fourth, 237);
  EXPECT_LT(difference(more(third, 10), more(fourth, 10)), 0.25);
}

TEST_F(SparseKv, KeptBlocksAreOfOneSetting) {
  BlockStore store(directory_.path("store"));
  Session first(*model_, {host_.get()}, options(kReads));
  first.keep_in(store);
  const std::vector<int32_t> tokens = prompt(230);
  const Logits expected = logits(first);
  first.keep();
  store.flush();
  for (const SparseReads& other : {SparseReads{}, SparseReads{8, 41}}) {
    Session session(*model_, {host_.get()}, options(other));
    session.keep_in(store);
    EXPECT_EQ(session.load_kept(tokens), 0);
  }
  Session same(*model_, {host_.get()}, options(kReads));
  same.keep_in(store);
  EXPECT_GE(same.load_kept(tokens), 192);
  same.append(std::span(tokens).subspan(static_cast<size_t>(same.n_past())));
  EXPECT_LT(difference(more(same, 5), expected), 1e-3);
}

// Steps with prompts are dense, so what a text reads depends on the others of its batch; where nothing is left out, nothing does.
TEST_F(SparseKv, BatchesAreReadSparsely) {
  const std::vector<BatchRequest> list = requests(9, 40);
  const auto answers = [&](int64_t n_sequences, const SparseReads& reads) {
    EngineOptions o = BatchRig::options(n_sequences);
    o.context.sparse_kv = reads;
    Runtime runtime(*model_, {host_.get()}, o);
    Batcher batcher(runtime);
    return together(batcher, list);
  };
  const std::vector<std::string> dense = alone(*model_, list);
  EXPECT_EQ(answers(3, kCovering), dense);
  const std::vector<std::string> sparse = answers(3, {8, 10});
  EXPECT_EQ(answers(3, {8, 10}), sparse);
  EXPECT_NE(sparse, dense);
  for (const std::string& answer : sparse) EXPECT_THAT(answer, testing::Not(HasSubstr("error")));
}

// Each row of a step that checks guesses chooses its own positions.
TEST_F(SparseKv, GuessesAreCheckedAsIfOneByOne) {
  const std::vector<int32_t> tokens{5, 36, 67, 98};
  EngineOptions o = options(kReads);
  o.context.n_draft = 3;
  Session guesses(*model_, {host_.get()}, o);
  guesses.append(prompt(230));
  const std::span<const float> rows = guesses.append_all(tokens);
  const Logits got(rows.begin(), rows.end());
  Session one_by_one(*model_, {host_.get()}, o);
  one_by_one.append(prompt(230));
  EXPECT_LT(difference(got, more(one_by_one, 4)), 1e-3);
}

TEST_F(SparseKv, WhereNothingWouldBeSparseItIsRefused) {
  test::SimDevice sim({});
  OffloadOptions flags;
  flags.n_gpu_layers = kLayers + 1;
  EXPECT_THAT(refusal({host_.get(), &sim}, options(kReads, flags)),
              HasSubstr("sparse_kv=8,40: the CPU reads sparsely, and here only GPUs read the cache"));
  flags.kv_prefetched = true;
  EXPECT_THAT(refusal({host_.get(), &sim}, options(kReads, flags)), HasSubstr("sparse_kv"));
  EXPECT_THAT(refusal({host_.get()}, options({kHeadDim + 1, 40})),
              HasSubstr("sparse_kv=33,40: the keys of this model have 32 components"));
}

// A cache that leaves a GPU for host memory is indexed there.
TEST_F(SparseKv, ASplitCacheThatGoesToTheHostIsIndexed) {
  OffloadOptions flags;
  flags.n_gpu_layers = kLayers + 1;
  flags.kv_split = 64;
  const std::vector<int32_t> tokens = prompt(230);
  EngineOptions o = options({kHeadDim, 150}, flags);
  o.oom_ladder = true;
  o.context.n_ubatch = 32;  // the smallest, so that the next rung is the cache
  Logits expected;
  int64_t n_runs = 0;
  {
    test::SimDevice works({});
    Session session(*model_, {host_.get(), &works}, o);
    session.append(tokens);
    n_runs = works.n_runs();
    expected = more(session, 4);
  }
  test::SimDevice sim({.fail_run = n_runs});
  Session session(*model_, {host_.get(), &sim}, o);
  session.append(tokens);
  const Logits got = more(session, 4);
  EXPECT_TRUE(std::ranges::none_of(session.placement().placement.layers,
                                   [](const LayerPlacement& l) { return uses_gpu(l.kv); }));
  EXPECT_LT(difference(got, expected), 0.25);
}

}  // namespace
}  // namespace tandem
