// Wide micro-batches, up to 8192 tokens: prompts for which weights are streamed to a simulated device give the CPU's logits
// bit for bit, also with experts on disk and divided rows, and the planner chooses such widths itself.
#include <gtest/gtest.h>

#include "support/split_rig.h"

namespace tandem {
namespace {

class WideBatches : public test::SplitRig {
 protected:
  static constexpr int64_t kLayers = 3, kContext = 16640;
  static constexpr int kPrompt = 8192 + 37;

  void SetUp() override { load_both(kLayers); }

  static EngineOptions wide(int64_t n_ubatch) {
    EngineOptions o = SplitRig::options();
    o.context.n_ctx = kContext;
    o.context.n_batch = 8192;
    o.context.n_ubatch = n_ubatch;
    return o;
  }
  // After a prompt of more than one micro-batch, and after a decoded token.
  static std::vector<float> long_logits(Session& session) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(prompt(kPrompt)));
    const int32_t id = 5;
    add(session.append(std::span(&id, 1)));
    return all;
  }
  std::vector<float> on_cpu(const Model& model, const EngineOptions& o) {
    Session alone(model, {host_.get()}, o);
    return long_logits(alone);
  }
};

TEST_F(WideBatches, GiveTheLogitsOfTheCpu) {
  // Slow enough that a segment that does not wait for its weights reads old data.
  test::SimDevice sim({.copy_bytes_per_s = 6e8});
  const std::vector<Device*> devices{host_.get(), &sim};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    for (const int64_t n_ubatch : {2048, 8192}) {
      const std::vector<float> expected = on_cpu(*model, wide(n_ubatch));
      for (const Streaming streaming : {Streaming::prefill, Streaming::always}) {
        for (const int64_t n_gpu_layers : {int64_t{1}, kLayers + 1}) {
          const bool all = n_gpu_layers > kLayers;
          if (all && model == dense_.get()) continue;  // nothing to stream
          SCOPED_TRACE(format("{}, {} tokens, {} layers, {}", streaming_name(streaming), n_ubatch,
                              n_gpu_layers, model == moe_.get() ? "experts" : "dense"));
          EngineOptions o = wide(n_ubatch);
          o.placement =
              place(model->architecture(), model->weights(), devices, {},
                    {.n_gpu_layers = n_gpu_layers, .n_cpu_moe = all ? kLayers : 0, .streaming = streaming});
          Session s(*model, devices, o);
          ASSERT_EQ(s.n_ubatch(), n_ubatch);
          EXPECT_EQ(long_logits(s), expected);
          EXPECT_EQ(sim.used_bytes(), s.placement().bytes.devices[1].total());
        }
      }
    }
  }
}

// Experts on disk are streamed whole to the GPU for a prompt, and the answer's are read one by one.
TEST_F(WideBatches, GiveTheLogitsOfTheCpuWithExpertsOnDisk) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  const std::vector<float> expected = on_cpu(*moe_, wide(8192));
  for (const Streaming streaming : {Streaming::none, Streaming::prefill}) {
    SCOPED_TRACE(streaming_name(streaming));
    EngineOptions o = wide(8192);
    o.placement = place(
        moe_->architecture(), moe_->weights(), devices, {},
        {.n_gpu_layers = kLayers + 1, .n_cpu_moe = kLayers, .streaming = streaming, .chosen_experts = true});
    Session s(*moe_, devices, o);
    EXPECT_EQ(long_logits(s), expected);
  }
}

// The sums of divided rows are the same, for each row is computed by one side.
TEST_F(WideBatches, GiveTheLogitsOfTheCpuWithDividedRows) {
  test::SimDevice sim({});
  const std::vector<Device*> devices{host_.get(), &sim};
  const std::vector<float> expected = on_cpu(*dense_, wide(8192));
  EngineOptions o = wide(8192);
  o.placement = place(dense_->architecture(), dense_->weights(), devices, {},
                      {.n_gpu_layers = 1, .streaming = Streaming::prefill, .rows_prefill = 0.6});
  Session s(*dense_, devices, o);
  EXPECT_EQ(long_logits(s), expected);
}

// A bus so slow that the weights should cross it once for the whole prompt.
TEST_F(WideBatches, ChosenByThePlanner) {
  const DeviceRates host{.read_bytes_per_s = 1e8, .ops_per_s = 1e8, .memory_bytes_per_s = 1e12};
  const DeviceRates gpu{.read_bytes_per_s = 400e9, .ops_per_s = 20e12, .bus_bytes_per_s = 1e6};
  for (const Model* model : {dense_.get(), moe_.get()}) {
    EngineOptions o = wide(0);
    o.context.n_batch = 8192;
    o.context.n_ubatch_given = false;
    o.context.k_dtype = o.context.v_dtype = DType::F16;
    o.context.kv_dtype_given = true;
    o.rates = {host, gpu};
    o.offload.n_gpu_layers = 1;
    o.offload.stream = Toggle::on;
    o.offload.gpu_rows = 1;
    test::SimDevice sim({});
    Session s(*model, {host_.get(), &sim}, o);
    EXPECT_EQ(s.n_ubatch(), 8192);
    EXPECT_EQ(long_logits(s), on_cpu(*model, wide(8192)));
  }
}

}  // namespace
}  // namespace tandem
