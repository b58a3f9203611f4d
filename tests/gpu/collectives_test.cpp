// Sums over CUDA devices by NCCL, and over host memory: both are those of the host. Skipped where fewer than two GPUs are.
#include "collectives/collectives.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/error.h"
#include "ggml-cuda/backend.h"

namespace tandem {
namespace {

class GpuCollectives : public testing::Test {
 protected:
  void SetUp() override {
    found_ = Registry({cuda::backend()}).find_gpus();
    if (found_.devices.size() < 2) GTEST_SKIP() << "fewer than two GPUs";
    for (const auto& device : found_.devices) devices_.push_back(device.get());
  }

  // In the order of runs, or beside them.
  void expect_sums(Collectives& collectives) {
    expect_sums(collectives, false);
    expect_sums(collectives, true);
  }
  void expect_sums(Collectives& collectives, bool beside) {
    constexpr size_t kRows = 3, kCols = 1000, kBytes = kRows * kCols * sizeof(float);
    std::vector<float> sum(kRows * kCols, 0);
    std::vector<CollectivePart> parts;
    for (size_t d = 0; d < devices_.size(); ++d) {
      std::vector<float> own(kRows * kCols);
      for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i % 17 + d);
      for (size_t i = 0; i < own.size(); ++i) sum[i] += own[i];
      const DevicePtr at = devices_[d]->alloc(kBytes);
      devices_[d]->copy_in(at, own.data(), kBytes);
      devices_[d]->wait(devices_[d]->record());
      parts.push_back({devices_[d], at, at, kCols});
    }
    for (CollectivePart& part : parts) {
      if (!beside) continue;
      part.queue = part.device->side_queue();
      part.device->side_queue()->follow();
    }
    collectives.begin_all_reduce(parts, kRows);
    const std::span<const Event> events = collectives.end_all_reduce();
    for (size_t i = 0; i < parts.size(); ++i) {
      if (beside) parts[i].device->side_queue()->lead(events[i]);
    }
    for (const CollectivePart& part : parts) {
      std::vector<float> got(kRows * kCols);
      part.device->copy_out(got.data(), part.out, kBytes);
      collectives.wait(*part.device, part.device->record(), "test");
      EXPECT_EQ(got, sum);
      part.device->free(part.out);
    }
  }

  FoundDevices found_;
  std::vector<Device*> devices_;
};

TEST_F(GpuCollectives, SumOverHostMemory) {
  expect_sums(*make_host_collectives());
}

TEST_F(GpuCollectives, SumByNccl) {
  std::unique_ptr<Collectives> nccl;
  try {
    nccl = make_nccl_collectives(devices_);
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  expect_sums(*nccl);
}

}  // namespace
}  // namespace tandem
