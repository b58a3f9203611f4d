// The device itself: memory, copies, events, executables and their recordings.
#include <numeric>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "gpu/harness.h"

namespace tandem::gpu_test {
namespace {

class GpuDevice : public GpuTest {
 protected:
  std::vector<std::byte> random_bytes(size_t n) {
    std::vector<std::byte> bytes(n);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random_.below(256));
    return bytes;
  }
};

TEST_F(GpuDevice, HasANameAndADescription) {
  EXPECT_FALSE(device_->info().name.empty());
  EXPECT_FALSE(device_->info().description.empty());
  EXPECT_FALSE(device_->info().host_memory);
  const MemoryInfo memory = device_->memory_info();
  EXPECT_GT(memory.free_bytes, 0u);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
}

TEST_F(GpuDevice, AllocatingTooMuchIsACleanError) {
  const MemoryInfo before = device_->memory_info();
  try {
    device_->alloc(before.total_bytes + (size_t{1} << 30));
    FAIL() << "more than all there is was given";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(e.what()).find("bytes"), std::string::npos) << e.what();
  }
  const DevicePtr address = device_->alloc(1 << 20);  // the device still works
  EXPECT_NE(address, nullptr);
  device_->free(address);
}

TEST_F(GpuDevice, AddressesAreAlignedAndNeverNull) {
  for (size_t n : {0, 1, 63, 1000}) {
    const DevicePtr address = device_->alloc(n);
    EXPECT_NE(address, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(address) % 64, 0u);
    device_->free(address);
  }
}

TEST_F(GpuDevice, CopiesOfAnySizeRoundTrip) {
  constexpr size_t kMiB = size_t{1} << 20;
  for (size_t n : {size_t{1}, size_t{255}, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 16 * kMiB, 50 * kMiB + 7}) {
    SCOPED_TRACE(n);
    const std::vector<std::byte> bytes = random_bytes(n);
    std::vector<std::byte> back(n);
    const DevicePtr a = device_->alloc(n), b = device_->alloc(n);
    device_->copy_in(a, bytes.data(), n);
    device_->copy_within(b, a, n);
    device_->copy_out(back.data(), b, n);
    device_->wait(device_->record());
    EXPECT_TRUE(back == bytes);
    device_->free(a);
    device_->free(b);
  }
}

// Beside the runs: what it copies out is what the device was given before, and the device finds what it has copied in.
TEST_F(GpuDevice, TheSideQueueFollowsAndLeads) {
  SideQueue* side = device_->side_queue();
  ASSERT_NE(side, nullptr);
  EXPECT_EQ(device_->side_queue(), side);
  for (size_t n : {size_t{4}, size_t{1} << 20, size_t{40} << 20}) {
    SCOPED_TRACE(n);
    const std::vector<std::byte> first = random_bytes(n), second = random_bytes(n);
    const DevicePtr a = device_->alloc(n), b = device_->alloc(n);
    for (int i = 0; i < 3; ++i) {
      std::vector<std::byte> between(n), after(n);
      device_->copy_in(a, first.data(), n);
      device_->copy_within(b, a, n);
      side->follow();
      side->copy_out(between.data(), b, n);
      const Event out = side->record();
      side->copy_in(b, second.data(), n);
      side->lead(side->record());
      device_->copy_within(a, b, n);
      device_->copy_out(after.data(), a, n);
      device_->wait(device_->record());
      side->wait(out);
      EXPECT_TRUE(side->has_reached(out));
      EXPECT_TRUE(between == first);
      EXPECT_TRUE(after == second);
    }
    device_->free(a);
    device_->free(b);
  }
}

// Many small copies in both directions, with waits now and then, on events in any order.
TEST_F(GpuDevice, CopiesKeepTheirOrder) {
  constexpr size_t kSlots = 64, kBytes = 40000;
  const DevicePtr memory = device_->alloc(kSlots * kBytes);
  std::vector<std::vector<std::byte>> written(kSlots);
  for (auto& bytes : written) bytes = random_bytes(kBytes);
  std::vector<Event> events;
  std::vector<std::vector<std::byte>> back(3 * kSlots, std::vector<std::byte>(kBytes));
  for (size_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kSlots; ++i) {
      device_->copy_in(memory + i * kBytes, written[(i + round) % kSlots].data(), kBytes);
      device_->copy_out(back[round * kSlots + i].data(), memory + i * kBytes, kBytes);
      events.push_back(device_->record());
    }
  }
  device_->wait(events[kSlots / 2]);
  for (size_t i = 0; i <= kSlots / 2; ++i) EXPECT_TRUE(back[i] == written[i]);
  device_->wait(events.back());
  device_->wait(events[3]);  // already reached
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_TRUE(back[i] == written[(i % kSlots + i / kSlots) % kSlots]) << i;
  }
  device_->free(memory);
}

// Small copies may be made together; not where one overwrites another, and in their order with all else.
TEST_F(GpuDevice, SmallCopiesKeepTheirOrder) {
  constexpr size_t kBytes = 4099;
  const DevicePtr a = device_->alloc(kBytes), b = device_->alloc(kBytes);
  for (int round = 0; round < 20; ++round) {
    const std::vector<std::byte> first = random_bytes(kBytes);
    std::vector<std::byte> expected = first, back(kBytes), copied(kBytes);
    std::vector<std::vector<std::byte>> parts;  // in use until the device has reached them
    device_->copy_in(a, first.data(), kBytes);
    for (int i = 0; i < 40; ++i) {
      const size_t at = static_cast<size_t>(random_.below(kBytes)),
                   n = 1 + static_cast<size_t>(random_.below(static_cast<int64_t>(kBytes - at)));
      parts.push_back(random_bytes(n));
      device_->copy_in(a + at, parts.back().data(), n);
      std::ranges::copy(parts.back(), expected.begin() + static_cast<ptrdiff_t>(at));
    }
    device_->copy_within(b, a, kBytes);
    const std::vector<std::byte> later = random_bytes(kBytes);
    device_->copy_in(a, later.data(), kBytes);
    device_->copy_out(back.data(), b, kBytes);
    device_->copy_out(copied.data(), a, kBytes);
    device_->wait(device_->record());
    EXPECT_TRUE(back == expected);
    EXPECT_TRUE(copied == later);
  }
  device_->free(a);
  device_->free(b);
}

// Events without a wait are harmless.
TEST_F(GpuDevice, ThousandsOfEvents) {
  Event last = 0;
  for (int i = 0; i < 5000; ++i) {
    const Event event = device_->record();
    EXPECT_GE(event, last);
    last = event;
  }
  OpCase c(random_, ShapeClass{});  // launches work behind them
  c.finish(c.builder.scale(c.activation(32), 2.0f));
  c.expect_match(*device_, {1, 1}, kRow);
  device_->wait(last);
}

// A step of one token is launched once, then recorded and replayed: each run gives bit-identical results.
TEST_F(GpuDevice, ReplayedStepsEqualLaunchedOnes) {
  ShapeClass shape;
  shape.max_tokens = 4;
  OpCase c(random_, shape);
  c.set_input(Input::positions, {5, 6, 7, 8});
  const TensorId x = c.activation(256);
  const TensorId normed = c.builder.norm(x, {NormKind::rms, 1e-5f, 256}, c.vector(random_.normals(256)));
  const TensorId turned = c.builder.rope(normed, {RopeStyle::half, 4, 64, 64});
  c.finish(c.builder.softcap(c.builder.add(c.builder.scale(turned, 3.0f), x), 5.0f));
  ASSERT_EQ(c.why_unsupported(*device_), "");
  const std::vector<OpResult> runs = c.run(*device_, {1, 1}, 5);
  for (const OpResult& run : runs) EXPECT_EQ(run.values, runs.front().values);
  c.expect_match(*device_, {1, 1}, kRow);
  c.expect_match(*device_, {4, 1}, kRow);
}

// Batches and guesses: steps of two to eight tokens are recorded too, each number of tokens and outputs by itself.
TEST_F(GpuDevice, ReplayedStepsOfFewTokensEqualLaunchedOnes) {
  ShapeClass shape;
  shape.max_tokens = 9;
  shape.max_outputs = 9;
  OpCase c(random_, shape);
  const TensorId x = c.activation(512);
  const TensorId hidden =
      c.builder.glu(x, {}, c.matrix(DType::Q4_K, 768, 512), c.matrix(DType::Q4_K, 768, 512));
  c.finish(c.builder.linear(hidden, c.matrix(DType::F16, 512, 768), nullptr, x));
  for (const int64_t n : some_of<int64_t>({2, 3, 4, 5, 6, 7, 8, 9}, 3)) {
    SCOPED_TRACE(n);
    const std::vector<OpResult> runs = c.run(*device_, {n, n}, 4);
    for (const OpResult& run : runs) EXPECT_EQ(run.values, runs.front().values);
    c.expect_match(*device_, {n, n}, kRounded, OpCase::Rounding::allowed);
  }
}

TEST_F(GpuDevice, ReplayedProductsEqualLaunchedOnes) {
  for (DType dtype : {DType::F16, DType::Q4_0, DType::Q4_K, DType::Q6_K, DType::Q8_0}) {
    SCOPED_TRACE(dtype_name(dtype));
    OpCase c(random_, ShapeClass{});
    const TensorId x = c.activation(512);
    const TensorId hidden = c.builder.glu(x, {}, c.matrix(dtype, 768, 512), c.matrix(dtype, 768, 512));
    c.finish(c.builder.linear(hidden, c.matrix(dtype, 512, 768), nullptr, x));
    ASSERT_EQ(c.why_unsupported(*device_), "");
    const std::vector<OpResult> runs = c.run(*device_, {1, 1}, 4);
    for (const OpResult& run : runs) EXPECT_EQ(run.values, runs.front().values);
  }
}

// An executable compiled later may need more scratch, which then moves; earlier recordings must not use the
// old memory.
TEST_F(GpuDevice, GrowingScratchMovesUnderRecordings) {
  OpCase small(random_, ShapeClass{});
  small.finish(small.builder.linear(small.activation(256), small.matrix(DType::Q4_0, 64, 256)));
  ShapeClass many;
  many.max_tokens = 300;
  OpCase large(random_, many);
  large.finish(large.builder.linear(large.activation(4096), large.matrix(DType::Q4_0, 64, 4096)));
  ASSERT_EQ(small.why_unsupported(*device_), "");
  const std::vector<OpResult> before = small.run(*device_, {1, 1}, 3);
  large.expect_match(*device_, {300, 1}, kRounded, OpCase::Rounding::allowed);
  const std::vector<OpResult> after = small.run(*device_, {1, 1}, 3);
  for (const OpResult& run : after) EXPECT_EQ(run.values, before.front().values);
}

}  // namespace
}  // namespace tandem::gpu_test
