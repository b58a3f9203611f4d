// Failures with layers on disk: failing reads, truncated files, devices that fail while they use a stream
// slot. Each gives one clean error, and later results are right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "gguf/split_writer.h"
#include "support/metered_host.h"
#include "support/sim_disk.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

using testing::HasSubstr;

class DiskFaults : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 6;

  void SetUp() override {
    test::TinyShape shape;
    shape.n_layer = kLayers;
    model_ = load("model.gguf", shape);
    expected_ = cpu_logits(*model_, options());
  }

  EngineOptions options() {
    EngineOptions o;
    o.context.n_ctx = 64;
    o.context.n_ubatch = 16;
    o.oom_ladder = false;
    return o;
  }
  std::unique_ptr<Session> session(const Model& model, const std::vector<Device*>& devices,
                                   const OffloadChoice& choice, const test::SimDiskOptions& disk) {
    EngineOptions o = options();
    o.placement = place(model.architecture(), model.weights(), devices, {}, choice);
    o.open_disk = [disk](std::vector<DiskFile> files) {
      return std::make_unique<test::SimDisk>(std::move(files), disk);
    };
    return std::make_unique<Session>(model, devices, o);
  }

  // Whether a run failed, with Error(io) if so.
  bool fails(Session& s) {
    try {
      EXPECT_EQ(logits(s), expected_);
      return false;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      return true;
    }
  }

  std::unique_ptr<Model> model_;
  std::vector<float> expected_;
};

TEST_F(DiskFaults, EveryReadThatFails) {
  for (const Streaming streaming : {Streaming::none, Streaming::always}) {
    for (int64_t n_disk : {2, 4, 6}) {
      const auto with = [&](const test::SimDiskOptions& disk, const auto& check) {
        test::MeteredHost host;
        test::SimDevice sim({.copy_bytes_per_s = 1e9});
        const auto s = session(*model_, {&host, &sim},
                               {.n_gpu_layers = 1, .streaming = streaming, .n_disk_layers = n_disk}, disk);
        check(*s);
      };
      int64_t n = 0;
      with({.n_reads = &n}, [&](Session& s) { EXPECT_FALSE(fails(s)); });
      // Except reads ahead for a next step that never happens.
      const int64_t n_waited = n - std::min<int64_t>(n_disk, 2) * (n_disk > 2);
      ASSERT_GT(n_waited, 1);
      for (int64_t i = 0; i < n_waited; ++i) {
        SCOPED_TRACE(format("{}, on disk {}, read {}", streaming_name(streaming), static_cast<int>(n_disk),
                            static_cast<int>(i)));
        int64_t count = 0;
        with({.n_reads = &count, .fail_read = i}, [&](Session& s) {
          EXPECT_TRUE(fails(s));
          s.truncate(0);
          EXPECT_FALSE(fails(s));
        });
      }
    }
  }
}

TEST_F(DiskFaults, EveryCopyToADeviceThatFails) {
  const OffloadChoice choice{1, {}, 0, Streaming::always, 5};
  int64_t n_before = 0, n_copies = 0;
  {
    test::MeteredHost host;
    test::SimDevice works({});
    const auto s = session(*model_, {&host, &works}, choice, {});
    n_before = works.n_copies();  // for resident data
    EXPECT_FALSE(fails(*s));
    n_copies = works.n_copies();
  }
  // Except copies ahead for a next step that never happens.
  for (int64_t i = n_before; i < n_copies - 2 * 7; i += 3) {
    SCOPED_TRACE(i);
    test::MeteredHost host;
    test::SimDevice sim({.copy_bytes_per_s = 1e9, .fail_copy = i});
    const auto s = session(*model_, {&host, &sim}, choice, {});
    EXPECT_TRUE(fails(*s));
    s->truncate(0);
    EXPECT_FALSE(fails(*s));
  }
}

TEST_F(DiskFaults, ATruncatedFile) {
  // Layers at the end of the file, so that only reads from disk touch the truncated part.
  const std::string path = directory_.path("ordered.gguf");
  {
    const GgufFile file(directory_.path("model.gguf"));
    std::vector<const TensorInfo*> order;
    for (const TensorInfo& t : file.tensors()) order.push_back(&t);
    std::stable_sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
      return !a->name.starts_with("blk.") && b->name.starts_with("blk.");
    });
    SplitWriter writer(path);
    writer.metadata() = file.metadata();
    for (const TensorInfo* t : order) {
      writer.add_tensor(t->name, t->dtype, std::span(t->dims, static_cast<size_t>(t->n_dims)));
    }
    for (const TensorInfo* t : order) writer.write_tensor(t->name, {t->data, t->n_bytes});
    writer.finish();
  }
  const auto model = Model::load(path);
  const TensorInfo& last = model->file().tensors().back();
  ASSERT_GT(last.n_rows(), 1);
  test::MeteredHost host;
  const auto s = session(*model, {&host}, {.n_disk_layers = kLayers}, {});
  EXPECT_FALSE(fails(*s));
  std::filesystem::copy_file(path, path + ".whole");
  std::filesystem::resize_file(path, last.offset + last.n_bytes / 2);
  s->truncate(0);
  try {
    logits(*s);
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_THAT(e.what(),
                AllOf(HasSubstr(path + ": reading "), HasSubstr("at offset "), HasSubstr("truncated")));
  }
  // After restoring the file, the text is right again.
  std::filesystem::copy_file(path + ".whole", path, std::filesystem::copy_options::overwrite_existing);
  s->truncate(0);
  EXPECT_FALSE(fails(*s));
}

TEST_F(DiskFaults, WithoutDirectReadsAndWithoutIoUring) {
  for (const DiskOptions reader : {DiskOptions{.direct = false}, DiskOptions{.uring = false},
                                   DiskOptions{.direct = false, .uring = false}}) {
    test::MeteredHost host;
    test::SimDevice sim({.copy_bytes_per_s = 1e9});
    for (const Streaming streaming : {Streaming::none, Streaming::always}) {
      const auto s = session(*model_, {&host, &sim}, {1, {}, 0, streaming, 5}, {.reader = reader});
      EXPECT_FALSE(fails(*s));
    }
  }
}

TEST_F(DiskFaults, AFileThatCannotBeOpenedAgain) {
  const std::string path = directory_.path("model.gguf");
  std::filesystem::rename(path, path + ".away");
  test::MeteredHost host;
  try {
    session(*model_, {&host}, {.n_disk_layers = 3}, {});
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
    EXPECT_THAT(e.what(), HasSubstr(path));
  }
}

// A GPU that runs out of memory leaves its layers to the host, which can keep them only on disk.
TEST_F(DiskFaults, TheLadderLeavesLayersOnDisk) {
  test::MeteredHost host;
  test::SimDevice sim({});
  EngineOptions o = options();
  o.oom_ladder = true;
  o.placement = place(model_->architecture(), model_->weights(), {&host, &sim}, {},
                      {.n_gpu_layers = 4, .n_disk_layers = 3});
  test::SimDevice tight({.memory_bytes = 200 << 10});
  Session s(*model_, {&host, &tight}, o);
  const std::vector<LayerPlacement>& layers = s.placement().placement.layers;
  EXPECT_GT(
      std::count_if(layers.begin(), layers.end(), [](const LayerPlacement& l) { return l.reads_disk(); }), 3);
  EXPECT_FALSE(fails(s));
}

}  // namespace
}  // namespace tandem
