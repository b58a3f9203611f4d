// Caches of grouped types (-ctk kivi4, kivi2) at every placement on simulated devices: the logits of the CPU as texts grow and
// are cut back, the planned bytes, sessions that are saved, batches that share groups, and failures.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/session_file.h"
#include "support/batch_rig.h"
#include "support/dtypes.h"
#include "support/tensor_rig.h"

namespace tandem {
namespace {

struct Place {
  const char* name;
  size_t n_gpus;
  OffloadOptions flags;
  bool is_divided = false;  // its sums round differently
};

std::vector<Place> places(int64_t n_layers) {
  OffloadOptions all;
  all.n_gpu_layers = n_layers + 1;
  std::vector<Place> list;
  const auto add = [&](const char* name, size_t n_gpus, const auto& set) -> Place& {
    list.push_back({name, n_gpus, all});
    set(list.back().flags);
    return list.back();
  };
  add("a GPU", 1, [](OffloadOptions&) {});
  add("two GPUs", 2, [](OffloadOptions& f) { f.tensor_split = {1, 1}; });
  add("some layers", 1, [](OffloadOptions& f) { f.n_gpu_layers = 2; });
  add("caches of some layers", 1, [](OffloadOptions& f) { f.n_kv_layers_gpu = 2; });
  add("on the host", 2, [](OffloadOptions& f) { f.kv_on_host = Toggle::on; });
  add("prefetched", 1, [](OffloadOptions& f) { f.kv_prefetched = true; });
  add("prefetched by two", 2, [](OffloadOptions& f) {
    f.kv_prefetched = true;
    f.tensor_split = {1, 1};
  });
  add("streamed", 1, [](OffloadOptions& f) {
    f.n_gpu_layers = 1;
    f.stream = Toggle::on;
  });
  add("divided", 2, [](OffloadOptions& f) {
    f.split_mode = SplitMode::tensor;
    f.tensor_split = {1, 1};
  }).is_divided = true;
  add("split", 1, [](OffloadOptions& f) { f.kv_split = 1; }).is_divided = true;
  add("split over two", 2, [](OffloadOptions& f) {
    f.kv_split = 200;
    f.tensor_split = {1, 1};
  }).is_divided = true;
  return list;
}

class GroupedKvDevices : public test::BatchRig {
 protected:
  static constexpr int64_t kLayers = 4, kTokens = 640;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_head = 4;  // heads of 32
    shape.n_head_kv = 2;
    shape.n_embd = 128;
    model_ = load("tiny.gguf", shape);
  }

  static EngineOptions options(DType k, DType v, const OffloadOptions& flags = {}) {
    EngineOptions o = SplitRig::options(flags, k);
    o.context.v_dtype = v;
    o.context.n_ctx = kTokens;
    o.context.n_ubatch = 32;
    return o;
  }

  // As a text grows by prompts and by tokens past groups that are closed, and is cut back into open and closed ones.
  static std::vector<float> logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    const std::vector<int32_t> ids = prompt(400);
    add(session.append(std::span(ids).first(171)));
    for (int32_t i = 0; i < 40; ++i) add(session.append(std::vector<int32_t>{3 + i * 11 % 290}));
    add(session.append(std::span(ids).first(333)));
    for (const int64_t n : {540, 420, 300, 97, 20}) {
      session.truncate(n);
      add(session.append(std::span(ids).first(21)));
    }
    add(session.append(std::span(ids).subspan(100, 250)));
    return all;
  }
  std::vector<float> logits_alone(DType k, DType v) {
    Session session(*model_, {host_.get()}, options(k, v));
    return logits(session);
  }

  static double apart(std::span<const float> got, std::span<const float> want) {
    EXPECT_EQ(got.size(), want.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      error += std::pow(static_cast<double>(got[i]) - want[i], 2);
      size += std::pow(static_cast<double>(want[i]), 2);
    }
    return std::sqrt(error / size);
  }
  static void expect_equal(const Place& place, std::span<const float> got, std::span<const float> want) {
    if (place.is_divided) {
      EXPECT_LT(apart(got, want), 0.03);
    } else {
      EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << apart(got, want);
    }
  }

  std::unique_ptr<Model> model_;
};

TEST_F(GroupedKvDevices, EveryPlacementGivesTheLogitsOfTheCpuInThePlannedBytes) {
  struct Types {
    DType k, v;
  };
  for (const Types t : {Types{DType::KIVI4, DType::KIVI4},
                        {DType::KIVI2, DType::KIVI2},
                        {DType::KIVI4, DType::Q8_0},
                        {DType::F16, DType::KIVI2}}) {
    const std::vector<float> wanted = logits_alone(t.k, t.v);
    for (const Place& place : places(kLayers)) {
      SCOPED_TRACE(testing::Message() << place.name << ", " << dtype_name(t.k) << "/" << dtype_name(t.v));
      test::SimMachine machine(*host_, place.n_gpus);
      Session session(*model_, machine.devices(), options(t.k, t.v, place.flags));
      expect_equal(place, logits(session), wanted);
      const std::vector<DeviceBytes>& planned = session.placement().bytes.devices;
      size_t kv = 0;
      for (size_t d = 0; d < planned.size(); ++d) {
        kv += planned[d].kv;
        if (d > 0) {
          EXPECT_EQ(machine.gpu(d - 1).used_bytes(), planned[d].total());
        }
      }
      EXPECT_EQ(session.kv_bytes(), kv);
    }
  }
}

// Whatever a session was saved from.
TEST_F(GroupedKvDevices, SavedSessionsGoOnAtAnyPlacement) {
  const std::string path = directory_.path("saved");
  for (const DType type : test::kGroupedTypes) {
    for (const Place& from : places(kLayers)) {
      test::SimMachine machine(*host_, from.n_gpus);
      Session first(*model_, machine.devices(), options(type, type, from.flags));
      first.append(prompt(333));
      save_session(first, path);
      const std::span<const float> next = first.append(std::vector<int32_t>{5});
      const std::vector<float> wanted(next.begin(), next.end());
      for (const Place& to : places(kLayers)) {
        SCOPED_TRACE(testing::Message() << from.name << " to " << to.name << ", " << dtype_name(type));
        test::SimMachine other(*host_, to.n_gpus);
        Session session(*model_, other.devices(), options(type, type, to.flags));
        SessionFile(path, session).restore(session, 333);
        EXPECT_EQ(session.n_cached(), 333);
        EXPECT_LT(apart(session.append(std::vector<int32_t>{5}), wanted), 0.02);
      }
    }
  }
}

TEST_F(GroupedKvDevices, BatchesShareGroupsAtAnyPlacement) {
  for (const DType type : test::kGroupedTypes) {
    for (const Place& place : places(kLayers)) {
      if (place.is_divided) continue;  // a rounding may choose another token
      SCOPED_TRACE(testing::Message() << place.name << ", " << dtype_name(type));
      const auto answers = [&](const std::vector<Device*>& devices, const OffloadOptions& flags) {
        EngineOptions o = options(type, type, flags);
        o.context.n_ctx = 1024;
        o.context.n_ctx_sequence = 400;
        o.context.n_sequences = 3;
        Runtime runtime(*model_, devices, o);
        Batcher batcher(runtime, 3);
        std::vector<BatchRequest> list = requests(9, 40);
        for (BatchRequest& r : list) {
          for (int t = 0; t < 170; ++t) r.prompt.insert(r.prompt.begin(), 3 + t * 13 % 290);
        }
        std::vector<std::string> all = together(batcher, list);
        EXPECT_GT(batcher.stats().n_reused, 0);
        return all;
      };
      test::SimMachine machine(*host_, place.n_gpus);
      EXPECT_EQ(answers(machine.devices(), place.flags), answers({host_.get()}, {}));
    }
  }
}

// With what it holds, open blocks included.
TEST_F(GroupedKvDevices, ACacheThatAGpuHasNoMemoryForGoesToTheHost) {
  for (const DType type : test::kGroupedTypes) {
    const std::vector<float> wanted = logits_alone(type, type);
    for (const int64_t fails : {2, 7, 30, 60}) {
      OffloadOptions flags;
      flags.n_gpu_layers = kLayers + 1;
      EngineOptions o = options(type, type, flags);
      o.oom_ladder = true;
      test::SimDevice sim({.fail_run = fails});
      Session session(*model_, {host_.get(), &sim}, o);
      EXPECT_EQ(logits(session), wanted) << fails;
      EXPECT_EQ(session.kv_bytes(), Session(*model_, {host_.get()}, options(type, type)).kv_bytes());
    }
  }
}

TEST_F(GroupedKvDevices, FailedAllocationsAndCopiesAreCleanErrors) {
  for (const int where : {0, 1, 2}) {
    const auto run = [&](test::SimDevice& sim) {
      OffloadOptions flags;
      flags.n_gpu_layers = kLayers + 1;
      flags.kv_prefetched = where == 1;
      if (where == 2) flags.kv_split = 1;
      Session session(*model_, {host_.get(), &sim}, options(DType::KIVI4, DType::KIVI2, flags));
      session.append(prompt(230));
      decode_one(session);
    };
    expect_clean_failures(run, 7);
  }
}

}  // namespace
}  // namespace tandem
