// Every allocation and every copy on a simulated device fails in turn: each gives a clean error and leaves no
// memory allocated.
#include <gtest/gtest.h>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "support/sim_device.h"
#include "support/trained_model.h"

namespace tandem {
namespace {

EngineOptions on_device(const Model& model) {
  EngineOptions options;
  options.context.n_ctx = 64;
  options.oom_ladder = false;
  options.placement = Placement::host_only(static_cast<size_t>(model.hparams().n_layer));
  const GpuId gpu(0);
  for (size_t i = 2; i < options.placement.layers.size(); ++i) {
    const DeviceId kv = i == 3 ? DeviceId::host() : gpu;
    options.placement.layers[i] = {Resident{gpu}, Resident{gpu}, ResidentKv{kv}};
  }
  return options;
}

void generate_some(const Model& model, Device& host, Device& device) {
  Session session(model, {&host, &device}, on_device(model));
  const std::vector<int32_t> prompt{1, 403, 407, 261, 378};
  session.append(prompt);
  for (int32_t token : {432, 383, 286}) session.append(std::span(&token, 1));
}

class Faults : public testing::Test {
 protected:
  void SetUp() override {
    model_ = Model::load(test::demo_model());
    host_ = cpu::make_cpu_device({1, 1});
  }
  std::unique_ptr<Model> model_;
  std::unique_ptr<Device> host_;
};

TEST_F(Faults, AFailedAllocationIsACleanError) {
  test::SimDevice works({});
  generate_some(*model_, *host_, works);
  ASSERT_GT(works.n_allocs(), 10);
  for (int64_t i = 0; i < works.n_allocs(); ++i) {
    test::SimDevice device({.fail_alloc = i});
    try {
      generate_some(*model_, *host_, device);
      FAIL() << "allocation " << i << " failed and nobody noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    }
    EXPECT_EQ(device.used_bytes(), 0u);
  }
}

TEST_F(Faults, TooLittleMemoryIsACleanError) {
  test::SimDevice works({});
  generate_some(*model_, *host_, works);
  test::SimDevice tight({.memory_bytes = works.peak_bytes()});
  generate_some(*model_, *host_, tight);
  test::SimDevice small({.memory_bytes = works.peak_bytes() - 1});
  EXPECT_THROW(generate_some(*model_, *host_, small), Error);
}

TEST_F(Faults, AFailedCopyIsACleanError) {
  test::SimDevice works({});
  generate_some(*model_, *host_, works);
  for (int64_t i = 0; i < works.n_copies(); ++i) {
    test::SimDevice device({.fail_copy = i});
    try {
      generate_some(*model_, *host_, device);
      FAIL() << "copy " << i << " failed and nobody noticed";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
    }
  }
}

TEST_F(Faults, ASlowBusChangesNothing) {
  test::SimDevice device({.copy_bytes_per_s = 2e8});
  generate_some(*model_, *host_, device);
}

}  // namespace
}  // namespace tandem
