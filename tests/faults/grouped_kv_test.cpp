// Caches of grouped types (-ctk kivi4, kivi2): what stays F16, what cutting back, saving, keeping and sharing do to groups, the
// bytes that are planned, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/batcher.h"
#include "engine/session_file.h"
#include "kv/block_store.h"
#include "support/dtypes.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class GroupedKv : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 3, kContext = 640;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 2;  // heads of 32
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(DType type, const OffloadOptions& flags = {}) {
    EngineOptions o = SplitRig::options(flags, type);
    o.context.n_ctx = kContext;
    o.context.n_ubatch = 32;
    return o;
  }

  static std::vector<float> row_after(Session& session, const std::vector<int32_t>& tokens) {
    const std::span<const float> row = session.append(tokens);
    return {row.begin(), row.end()};
  }
  std::vector<float> row_after(DType type, int n_tokens) {
    Session session(*model_, {host_.get()}, options(type));
    return row_after(session, prompt(n_tokens));
  }

  static double difference(std::span<const float> got, std::span<const float> want) {
    double most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      most = std::max<double>(most, std::fabs(got[i] - want[i]));
      largest = std::max<double>(largest, std::fabs(want[i]));
    }
    return most / largest;
  }

  static std::vector<std::byte> rows_of(const Session& session, size_t layer, KvHalf half) {
    std::vector<std::byte> rows(static_cast<size_t>(session.n_past()) * 2 * 32 * model_heads_);
    session.read_kv(layer, half, rows.data());
    return rows;
  }

  std::unique_ptr<Model> model_;
  static inline size_t model_heads_ = 2;
};

// A step's tokens are there, and those of 128 before it.
TEST_F(GroupedKv, TheNewestTokensAreHalfFloats) {
  for (const DType type : test::kGroupedTypes) {
    EXPECT_EQ(row_after(type, 160), row_after(DType::F16, 160));
    const std::vector<float> exact = row_after(DType::F16, 500), got = row_after(type, 500);
    EXPECT_NE(got, exact);
    EXPECT_LT(difference(got, exact), type == DType::KIVI4 ? 0.2 : 0.6);
  }
}

TEST_F(GroupedKv, TakesThePlannedBytes) {
  for (const DType type : test::kGroupedTypes) {
    Session alone(*model_, {host_.get()}, options(type));
    const auto heads = static_cast<size_t>(model_->hparams().n_head_kv);
    const size_t n_open = 6 + 1;  // 128 tokens anywhere in blocks, and a step of 32
    const size_t of_layer = heads * (kContext * 2 * row_bytes(type, 32) + n_open * 32 * 2 * 64);
    EXPECT_EQ(alone.kv_bytes(), kLayers * of_layer);
    EXPECT_EQ(alone.placement().bytes.devices[0].kv, alone.kv_bytes());
    OffloadOptions flags;
    flags.n_gpu_layers = kLayers + 1;
    test::SimDevice sim({});
    Session session(*model_, {host_.get(), &sim}, options(type, flags));
    EXPECT_EQ(session.placement().bytes.devices[0].kv, 0u);
    EXPECT_EQ(session.placement().bytes.devices[1].kv, kLayers * of_layer + kContext / 32 * sizeof(int32_t));
    EXPECT_EQ(session.kv_bytes(), session.placement().bytes.devices[1].kv);
  }
}

TEST_F(GroupedKv, SparseReadsAreRefused) {
  const auto refusal = [&](const auto& set) -> std::string {
    test::SimDevice sim({});
    EngineOptions o = options(DType::KIVI4);
    set(o);
    try {
      const Session session(*model_, {host_.get(), &sim}, o);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      return e.what();
    }
    return "not refused";
  };
  EXPECT_THAT(refusal([](EngineOptions& o) { o.context.sparse_kv = {4, 16}; }), HasSubstr("read as a whole"));
}

// A text that is cut back by tokens that are open still goes on as if these had never been there.
TEST_F(GroupedKv, CuttingOpenTokensLeavesNoTrace) {
  for (const DType type : test::kGroupedTypes) {
    Session straight(*model_, {host_.get()}, options(type)), cut(*model_, {host_.get()}, options(type));
    straight.append(prompt(300));
    cut.append(prompt(300));
    for (const int n_wrong : {1, 3, 8}) {
      cut.append_all(std::vector<int32_t>(1, 99));
      cut.append(std::vector<int32_t>(static_cast<size_t>(n_wrong), 50));
      cut.truncate(straight.n_past());
      EXPECT_EQ(cut.n_cached(), cut.n_past());
      for (const int32_t id : {5, 280, 33}) EXPECT_EQ(row_after(cut, {id}), row_after(straight, {id}));
    }
  }
}

// The rest of a closed group is dropped, and computed again with what comes next.
TEST_F(GroupedKv, CuttingIntoAClosedGroupDropsIt) {
  for (const DType type : test::kGroupedTypes) {
    Session session(*model_, {host_.get()}, options(type));
    const std::vector<int32_t> text = prompt(400);
    session.append(text);
    for (const int64_t n : {204, 97, 33, 32, 31}) {
      session.truncate(n);
      EXPECT_EQ(session.n_past(), n);
      EXPECT_EQ(session.n_cached(), n / 32 * 32);
      const std::vector<float> got = row_after(session, {text[static_cast<size_t>(n)]});
      EXPECT_EQ(session.n_cached(), n + 1);
      Session fresh(*model_, {host_.get()}, options(type));
      const std::vector<float> expected = row_after(fresh, {text.begin(), text.begin() + n + 1});
      EXPECT_LT(difference(got, expected), type == DType::KIVI4 ? 0.3 : 0.8);
      session.truncate(0);
      session.append(text);
    }
    session.truncate(70);
    EXPECT_LE(session.max_checked(), 0);  // no guesses before what is missing is there
    session.append(std::vector<int32_t>{7});
    EXPECT_EQ(session.n_cached(), 71);
    session.truncate(5);
    session.evaluate(prompt(40), [](int64_t, int64_t, std::span<const float>) {});
    EXPECT_EQ(session.n_cached(), 45);
  }
}

// Files have half floats, so they load into any type. The newest tokens are exact.
TEST_F(GroupedKv, SavedSessionsLoadIntoAnyType) {
  const std::string path = directory_.path("saved");
  const std::vector<int32_t> next{5};
  for (const DType type : test::kGroupedTypes) {
    Session first(*model_, {host_.get()}, options(type));
    first.append(prompt(333));
    save_session(first, path);
    const std::vector<float> expected = row_after(first, next);
    for (const DType other : {type, DType::F16, DType::F32, DType::Q8_0}) {
      Session session(*model_, {host_.get()}, options(other));
      SessionFile(path, session).restore(session, 333);
      EXPECT_EQ(session.n_cached(), 333);
      const double d = difference(row_after(session, next), expected);
      EXPECT_LT(d, other == DType::Q8_0 ? 0.05 : 0.01) << dtype_name(type) << " to " << dtype_name(other);
    }
    Session exact(*model_, {host_.get()}, options(DType::F16));
    exact.append(prompt(333));
    save_session(exact, path);
    Session session(*model_, {host_.get()}, options(type));
    SessionFile(path, session).restore(session, 333);
    const std::vector<std::byte> a = rows_of(exact, 1, KvHalf::keys), b = rows_of(session, 1, KvHalf::keys);
    const size_t row = a.size() / 333,
                 open_from = 192 * row;  // 333 - 128 = 205 lies in the block from 192 on
    EXPECT_TRUE(std::equal(a.begin() + static_cast<int64_t>(open_from), a.end(),
                           b.begin() + static_cast<int64_t>(open_from)));
    EXPECT_FALSE(std::equal(a.begin(), a.begin() + static_cast<int64_t>(open_from), b.begin()));
    session.append(prompt(100));
    session.truncate(0);
    session.append(prompt(300));
  }
}

// Of a text that was cut back into a closed group, the tokens that are not cached are saved too.
TEST_F(GroupedKv, TextsWithMissingTokensAreSaved) {
  const std::string path = directory_.path("saved");
  for (const DType type : test::kGroupedTypes) {
    Session first(*model_, {host_.get()}, options(type));
    first.append(prompt(400));
    first.truncate(204);
    save_session(first, path);
    const std::vector<float> expected = row_after(first, {5});
    for (const DType other : {type, DType::F16}) {
      Session session(*model_, {host_.get()}, options(other));
      SessionFile(path, session).restore(session, 204);
      EXPECT_EQ(session.n_past(), 204);
      EXPECT_EQ(session.n_cached(), 192);
      session.truncate(203);
      session.truncate(200);
      EXPECT_EQ(session.n_cached(), 192);
      const std::vector<int32_t> text = prompt(204);
      session.append(std::span(text).subspan(200));
      EXPECT_EQ(session.n_cached(), 204);
      EXPECT_LT(difference(row_after(session, {5}), expected), 0.05);
    }
  }
}

TEST_F(GroupedKv, KeptBlocksAreLoaded) {
  for (const DType type : test::kGroupedTypes) {
    const std::vector<int32_t> text = prompt(333);
    std::vector<float> expected;
    const std::string folder = directory_.path(std::string(dtype_name(type)));
    {
      BlockStore store(folder);
      Session session(*model_, {host_.get()}, options(type));
      session.keep_in(store);
      expected = row_after(session, text);
      session.keep();
    }
    BlockStore store(folder);
    Session session(*model_, {host_.get()}, options(type));
    session.keep_in(store);
    const int64_t n = session.load_kept(text);
    EXPECT_EQ(n, 320);
    EXPECT_LT(difference(row_after(session, {text.begin() + n, text.end()}), expected), 0.05);
    EXPECT_EQ(session.n_cached(), 333);
  }
}

// Texts that share beginnings, more of them than run at once, in a cache that is too small for all.
TEST_F(GroupedKv, BatchesShareGroups) {
  for (const DType type : test::kGroupedTypes) {
    for (const int n_shared : {0, 200}) {
      EngineOptions o = options(type);
      o.context.n_ctx = 1024;
      o.context.n_ctx_sequence = 400;
      o.context.n_ubatch = 64;
      o.context.n_sequences = 3;
      Runtime runtime(*model_, {host_.get()}, o);
      Batcher batcher(runtime, 3);
      for (int i = 0; i < 12; ++i) {
        BatchRequest r;
        r.index = i;
        for (int t = 0; t < n_shared; ++t) r.prompt.push_back(3 + t * 5 % 290);
        for (int t = 0; t < 1 + i * 37 % 150; ++t) r.prompt.push_back(3 + (t * 7 + i * 31) % 290);
        r.sampling.temp = 0;
        r.generation.n_predict = 10 + i * 11 % 60;
        batcher.add(std::move(r));
      }
      int n_done = 0;
      while (n_done < 12) {
        batcher.step([&](BatchAnswer answer) {
          EXPECT_FALSE(answer.error.has_value());
          ++n_done;
        });
      }
      EXPECT_EQ(batcher.stats().n_reused > 0, n_shared > 0);
    }
  }
}

}  // namespace
}  // namespace tandem
