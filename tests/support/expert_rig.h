// Shared by the tests of experts in three places: a small mixture whose experts are on disk, in host memory and on a GPU, with
// slots and memory for any number of them.
#pragma once

#include <gtest/gtest.h>

#include "exec/expert_cache.h"
#include "support/batch_rig.h"
#include "support/moody_disk.h"
#include "support/sim_disk.h"

namespace tandem::test {

class ExpertRig : public BatchRig {
 protected:
  static constexpr int64_t kLayers = 5, kExperts = 12, kUsed = 3;

  void SetUp() override {
    TinyShape shape;
    shape.n_layer = kLayers;
    shape.n_expert = kExperts;
    shape.n_expert_used = kUsed;
    model_ = load("model.gguf", shape);
    expected_ = cpu_logits(*model_, options());
  }
  EngineOptions options() {
    EngineOptions o = SplitRig::options({}, DType::F32);
    o.context.n_ctx = 256;
    o.open_disk = [this](std::vector<DiskFile> files) {
      return std::make_unique<MoodyDisk>(std::move(files), seed_++, &log_);
    };
    return o;
  }
  EngineOptions reading(const SimDiskOptions& disk) {
    EngineOptions o = options();
    o.open_disk = [disk](std::vector<DiskFile> files) {
      return std::make_unique<SimDisk>(std::move(files), disk);
    };
    return o;
  }
  // All layers on the GPU, the experts of the first n_cpu_moe on disk, with `room` bytes of memory for them.
  static OffloadChoice choice(int64_t n_slots, double fetched, size_t room, int64_t n_cpu_moe = kLayers,
                              double kept = 1) {
    return {.n_gpu_layers = kLayers + 1,
            .n_cpu_moe = n_cpu_moe,
            .chosen_experts = true,
            .n_expert_bytes = room,
            .n_cached_experts = n_slots,
            .fetched_experts = fetched,
            .kept_experts = kept};
  }
  EngineOptions placed(const std::vector<Device*>& devices, const OffloadChoice& choice, EngineOptions o) {
    o.placement = place(model_->architecture(), model_->weights(), devices, {}, choice);
    EXPECT_EQ(o.placement.caches_experts(StepKind::decode), choice.n_cached_experts > 0);
    EXPECT_EQ(o.placement.reads_chosen(), choice.chosen_experts);
    return o;
  }
  std::unique_ptr<Session> session(const std::vector<Device*>& devices, const OffloadChoice& choice,
                                   const EngineOptions& o) {
    return std::make_unique<Session>(*model_, devices, placed(devices, choice, o));
  }
  // The sums are added in another order.
  static void expect_near(std::span<const float> got, std::span<const float> expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 2e-5f) << i;
  }
  // Of an expert in the store, and of all.
  static constexpr size_t kOfOne = 3 * (64 * 96 * sizeof(float) + kDiskAlignment);
  static constexpr size_t kOfAll = kLayers * kExperts * kOfOne;
  static std::vector<size_t> rooms() { return {0, kOfAll / 4, kOfAll}; }
  static const ExpertCacheCounts& on_gpu(const Session& s) { return s.executor().expert_cache().counts(); }
  static const ExpertCounts& of_store(const Session& s) { return s.executor().experts().counts(); }

  std::unique_ptr<Model> model_;
  std::vector<float> expected_;
  DiskLog log_;
  uint64_t seed_ = 1;
};

}  // namespace tandem::test
