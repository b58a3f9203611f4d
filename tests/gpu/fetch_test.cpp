// Fetching weights while other work runs, and copying results out early: waits, resulting memory, and
// failures.
#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <new>

#include "base/error.h"
#include "gguf/quants.h"
#include "gpu/harness.h"
#ifdef TANDEM_EMULATED_GPU
#include "emulated/faults.h"
#include "emulated/gpu.h"
#endif

namespace tandem::gpu_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Of whole pages.
class Memory {
 public:
  explicit Memory(size_t n_bytes) : n_bytes_(n_bytes) {
    address_ = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Memory() { munmap(address_, n_bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* begin() const { return static_cast<std::byte*>(address_); }

 private:
  void* address_;
  size_t n_bytes_;
};

class GpuFetch : public GpuTest {
 protected:
  std::vector<std::byte> random_bytes(size_t n) {
    std::vector<std::byte> bytes(n);
    auto x = static_cast<uint32_t>(random_.below(1 << 30));
    for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
    return bytes;
  }

  static Weight floats(const std::vector<std::byte>& bytes) {
    return {"floats", DType::F32, 1, 1, static_cast<int64_t>(bytes.size() / sizeof(float)), bytes.data()};
  }

  std::vector<std::byte> bytes_at(DevicePtr address, size_t n) {
    std::vector<std::byte> bytes(n);
    device_->copy_out(bytes.data(), address, n);
    device_->wait(device_->record());
    return bytes;
  }

  // Zeroed memory, including the gaps of the layout.
  DevicePtr zeros(size_t n) {
    const DevicePtr address = device_->alloc(n);
    const std::vector<std::byte> nothing(n);
    device_->copy_in(address, nothing.data(), n);
    device_->wait(device_->record());
    return address;
  }
};

TEST_F(GpuFetch, FetchEqualsUpload) {
  struct Size {
    int64_t n_mats, n_rows, n_cols;
  };
  for (DType dtype : quantizable_dtypes()) {
    for (const Size& size : some_of<Size>({{3, 70, 512}, {1, 3, 256}, {1, 9000, 1024}}, 3)) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(size.n_rows) + " rows");
      Weight weight{"w", dtype, size.n_mats, size.n_rows, size.n_cols};
      const std::vector<std::byte> bytes = random_bytes(weight.n_bytes());
      weight.data = bytes.data();
      const size_t n = device_->weight_bytes(weight);
      const DevicePtr a = zeros(n), b = zeros(n);
      device_->upload(a, weight);
      device_->join(device_->fetch(b, weight, device_->record()));
      EXPECT_TRUE(bytes_at(b, n) == bytes_at(a, n));
      device_->free(a);
      device_->free(b);
    }
  }
}

TEST_F(GpuFetch, BytesOfAnyNumber) {
  for (size_t n : {size_t{4}, 4 * kMiB - 4, 4 * kMiB, 4 * kMiB + 4, 16 * kMiB, 37 * kMiB + 8}) {
    SCOPED_TRACE(n);
    const std::vector<std::byte> bytes = random_bytes(n);
    const DevicePtr to = device_->alloc(n);
    device_->join(device_->fetch(to, floats(bytes), device_->record()));
    EXPECT_TRUE(bytes_at(to, n) == bytes);
    device_->free(to);
  }
}

// Like streaming layers: a few slots, each filled while others are read; weights of both layouts.
TEST_F(GpuFetch, SlotsAreReadWhenFullAndFilledWhenRead) {
  constexpr size_t kLayers = 40;
  Weight shape{"w", DType::Q8_0, 1, 96, 1024};
  std::deque<std::vector<std::byte>> files;
  std::vector<Weight> weights;
  for (size_t i = 0; i < kLayers; ++i) {
    const bool is_plain = i % 5 == 3;
    files.push_back(random_bytes(is_plain ? 81920 : shape.n_bytes()));
    weights.push_back(is_plain ? floats(files.back()) : shape);
    weights.back().data = files.back().data();
  }
  const size_t n_slot = std::max<size_t>(device_->weight_bytes(shape), 81920);
  std::vector<std::vector<std::byte>> expected;
  for (const Weight& w : weights) {
    const DevicePtr once = zeros(n_slot);
    device_->upload(once, w);
    expected.push_back(bytes_at(once, device_->weight_bytes(w)));
    device_->free(once);
  }
  for (size_t n_slots : {1, 2, 3}) {
    std::vector<DevicePtr> slots;
    for (size_t i = 0; i < n_slots; ++i) slots.push_back(zeros(n_slot));
    const DevicePtr results = zeros(kLayers * n_slot);
    std::vector<Event> fetched(kLayers);
    for (size_t i = 0; i < n_slots; ++i) fetched[i] = device_->fetch(slots[i], weights[i], 0);
    for (size_t i = 0; i < kLayers; ++i) {
      const DevicePtr slot = slots[i % n_slots];
      device_->join(fetched[i]);
      device_->copy_within(results + i * n_slot, slot, n_slot);
      if (i + n_slots < kLayers)
        fetched[i + n_slots] = device_->fetch(slot, weights[i + n_slots], device_->record());
    }
    for (size_t i = 0; i < kLayers; ++i) {
      EXPECT_TRUE(bytes_at(results + i * n_slot, expected[i].size()) == expected[i])
          << n_slots << " slots, layer " << i;
    }
    for (const DevicePtr slot : slots) device_->free(slot);
    device_->free(results);
  }
}

// Joining a fetch joins all earlier ones; joining twice, or an event without a fetch, is harmless.
TEST_F(GpuFetch, JoinsInAnyOrder) {
  const std::vector<std::byte> bytes = random_bytes(64 * 1024);
  std::vector<DevicePtr> to;
  std::vector<Event> fetched;
  device_->join(0);
  for (int i = 0; i < 20; ++i) {
    to.push_back(zeros(bytes.size()));
    fetched.push_back(device_->fetch(to.back(), floats(bytes), device_->record()));
  }
  device_->join(fetched[11]);
  device_->join(fetched[3]);
  device_->join(fetched[11]);
  device_->join(0);
  for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(bytes_at(to[i], bytes.size()) == bytes) << i;
  device_->join(fetched.back());
  for (size_t i = 12; i < 20; ++i) EXPECT_TRUE(bytes_at(to[i], bytes.size()) == bytes) << i;
  for (const DevicePtr address : to) device_->free(address);
}

// The last write to a slot wins, whether a copy or a kernel makes it.
TEST_F(GpuFetch, TheLastFetchIntoASlotWins) {
  Weight blocks{"w", DType::Q4_0, 1, 64, 1024};
  const std::vector<std::byte> packed = random_bytes(blocks.n_bytes()), plain = random_bytes(16384);
  blocks.data = packed.data();
  const size_t n = device_->weight_bytes(blocks);
  const DevicePtr slot = zeros(n), once = zeros(n);
  device_->upload(once, blocks);
  const std::vector<std::byte> expected = bytes_at(once, n);
  for (int round = 0; round < 20; ++round) {
    device_->fetch(slot, blocks, 0);
    device_->join(device_->fetch(slot, floats(plain), 0));
    ASSERT_TRUE(bytes_at(slot, plain.size()) == plain);
    device_->fetch(slot, floats(plain), 0);
    device_->join(device_->fetch(slot, blocks, 0));
    ASSERT_TRUE(bytes_at(slot, n) == expected);
  }
  device_->free(slot);
  device_->free(once);
}

// Many fetches wait for events among many unused ones: none is confused with another.
TEST_F(GpuFetch, ThousandsOfEvents) {
  const std::vector<std::byte> a = random_bytes(4096), b = random_bytes(4096);
  const DevicePtr slot = zeros(4096), result = zeros(4096);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::byte>& now = round % 2 == 0 ? a : b;
    const Event fetched = device_->fetch(slot, floats(now), device_->record());
    for (int i = 0; i < 20; ++i) device_->record();
    device_->join(fetched);
    device_->copy_within(result, slot, 4096);
    if (round % 37 != 0) continue;
    ASSERT_TRUE(bytes_at(result, 4096) == now) << round;
  }
  device_->free(slot);
  device_->free(result);
}

TEST_F(GpuFetch, MemoryAndDeviceCanBeFreedDuringAFetch) {
  const std::vector<std::byte> bytes = random_bytes(30 * kMiB);
  for (int i = 0; i < 3; ++i) {
    const DevicePtr to = device_->alloc(bytes.size());
    device_->fetch(to, floats(bytes), device_->record());
    device_->free(to);
  }
  const DevicePtr to = device_->alloc(bytes.size());
  for (int i = 0; i < 5; ++i) device_->fetch(to, floats(bytes), device_->record());
  device_->free(to);
  device_.reset();
}

// A result is copied to the host while more work is issued: it has arrived after the wait for its event.
TEST_F(GpuFetch, AnEarlyCopyOutHasArrivedAfterTheWait) {
  constexpr size_t kBytes = 200000;
  const std::vector<std::byte> first = random_bytes(kBytes), second = random_bytes(kBytes);
  const DevicePtr memory = zeros(kBytes), slot = zeros(kBytes);
  for (int round = 0; round < 5; ++round) {
    std::vector<std::byte> early(kBytes), late(kBytes), nothing(kBytes);
    device_->copy_in(memory, first.data(), kBytes);
    device_->copy_out(early.data(), memory, kBytes);
    const Event event = device_->record();
    device_->copy_in(memory, second.data(), kBytes);
    const Event fetched = device_->fetch(slot, floats(first), device_->record());
    device_->join(fetched);
    device_->copy_within(memory, slot, kBytes / 2);
    device_->copy_out(late.data(), memory, kBytes);
    const Event end = device_->record();
#ifdef TANDEM_EMULATED_GPU
    EXPECT_TRUE(early == nothing) << "issuing more has waited for it";
#endif
    device_->wait(event);
    EXPECT_TRUE(early == first);
    device_->wait(end);
    EXPECT_TRUE(std::equal(late.begin(), late.begin() + kBytes / 2, first.begin()));
    EXPECT_TRUE(std::equal(late.begin() + kBytes / 2, late.end(), second.begin() + kBytes / 2));
  }
  device_->free(memory);
  device_->free(slot);
}

// Weights in a page-locked range, beside it, and half in it; in memory that was locked in two parts.
TEST_F(GpuFetch, PinnedMemoryIsFetchedAsAnyOther) {
  Memory memory(24 * kMiB);
  const std::vector<std::byte> bytes = random_bytes(24 * kMiB);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  const auto part = [&](size_t first, size_t n) { return std::span<const std::byte>(memory.begin() + first, n); };
  const auto a = device_->pin(part(0, 6 * kMiB + 100)), b = device_->pin(part(5 * kMiB, 8 * kMiB));
  const auto again = device_->pin(part(kMiB, kMiB));
  ASSERT_TRUE(a && b && again);
  for (DType dtype : {DType::F32, DType::Q4_K, DType::Q8_0, DType::F16}) {
    for (const size_t first : {size_t{0}, 4 * kMiB + 64, 12 * kMiB, 14 * kMiB}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " at " + std::to_string(first));
      Weight weight{"w", dtype, 1, 0, 1024};
      weight.n_rows = static_cast<int64_t>(7 * kMiB / row_bytes(dtype, 1024));
      weight.data = memory.begin() + first;
      const size_t n = device_->weight_bytes(weight);
      const DevicePtr fetched = zeros(n), uploaded = zeros(n);
      device_->upload(uploaded, weight);
#ifdef TANDEM_EMULATED_GPU
      const auto before = emulator::counts();
#endif
      for (int i = 0; i < 3; ++i) device_->join(device_->fetch(fetched, weight, device_->record()));
      EXPECT_TRUE(bytes_at(fetched, n) == bytes_at(uploaded, n));
#ifdef TANDEM_EMULATED_GPU
      const bool is_all_pinned = first < 6 * kMiB;
      EXPECT_EQ((emulator::counts() - before).bytes_from_registered,
                is_all_pinned ? 3 * static_cast<int64_t>(weight.n_bytes()) : 0);
#endif
      device_->free(fetched);
      device_->free(uploaded);
    }
  }
}

// Unlocked while fetches from there are on their way, which the driver would not forgive.
TEST_F(GpuFetch, WhoeverLetsGoOfPinnedMemoryLastWaitsForCopies) {
  Memory memory(20 * kMiB);
  const std::vector<std::byte> bytes = random_bytes(20 * kMiB);
  std::copy(bytes.begin(), bytes.end(), memory.begin());
  Weight weight{"w", DType::F32, 1, 1, static_cast<int64_t>(bytes.size() / sizeof(float)), memory.begin()};
  const DevicePtr to = device_->alloc(bytes.size());
  for (int i = 0; i < 20; ++i) {
    auto first = device_->pin({memory.begin(), bytes.size()}), second = device_->pin({memory.begin(), 10 * kMiB});
    ASSERT_TRUE(first && second);
    const Event fetched = device_->fetch(to, weight, device_->record());
    (i % 2 == 0 ? first : second).reset();
    (i % 2 == 0 ? second : first).reset();
    device_->join(fetched);
    ASSERT_TRUE(bytes_at(to, bytes.size()) == bytes);
  }
#ifdef TANDEM_EMULATED_GPU
  EXPECT_EQ(emulator::registered_bytes(), 0u);
#endif
  device_->free(to);
}

#ifdef TANDEM_EMULATED_GPU
TEST_F(GpuFetch, WhoPinsHoldsNothingBesideIt) {
  Memory memory(8 * kMiB);
  auto below = device_->pin({memory.begin(), kMiB}), above = device_->pin({memory.begin() + 4 * kMiB, kMiB});
  const auto between = device_->pin({memory.begin() + 2 * kMiB, kMiB});
  EXPECT_EQ(emulator::registered_bytes(), 3 * kMiB);
  below.reset();
  EXPECT_EQ(emulator::registered_bytes(), 2 * kMiB);
  above.reset();
  EXPECT_EQ(emulator::registered_bytes(), kMiB);
}

TEST_F(GpuFetch, WhereTheDriverRefusesToPinNothingStaysPinned) {
  Memory memory(8 * kMiB);
  const auto held = device_->pin({memory.begin() + 2 * kMiB, kMiB});
  for (int64_t n = 0; n < 2; ++n) {  // before what is held, and behind it
    emulator::fail_register(n);
    EXPECT_FALSE(device_->pin({memory.begin(), 8 * kMiB}));
    EXPECT_EQ(emulator::registered_bytes(), kMiB);
  }
  EXPECT_TRUE(device_->pin({memory.begin(), 8 * kMiB}));
}

TEST_F(GpuFetch, AFailureIsThrownOnceByTheWait) {
  const std::vector<std::byte> bytes = random_bytes(10 * kMiB);  // three pieces
  for (int64_t n = 0; n < 6; ++n) {
    SCOPED_TRACE(n);
    const DevicePtr a = zeros(bytes.size()), b = zeros(bytes.size());
    device_->join(device_->fetch(a, floats(bytes), 0));
    emulator::fail_copy_from_host(n);
    const Event first = device_->fetch(a, floats(bytes), 0), second = device_->fetch(b, floats(bytes), 0);
    bool failed = false;
    for (const Event fetched : {first, second}) {
      try {
        device_->join(fetched);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io);
        EXPECT_FALSE(failed);
        failed = true;
      }
    }
    EXPECT_TRUE(failed);
    device_->wait(device_->record());
    device_->join(device_->fetch(b, floats(bytes), device_->record()));
    EXPECT_TRUE(bytes_at(b, bytes.size()) == bytes);
    device_->free(a);
    device_->free(b);
  }
}

// A fetch that fails behind a copy that is on its way: nothing reads the pinned piece, or writes to the slot, once the
// failure is known.
TEST_F(GpuFetch, NothingOfAFailedFetchComesLater) {
  const std::vector<std::byte> bytes = random_bytes(3 * kMiB), others = random_bytes(40 * kMiB),
                               last = random_bytes(3 * kMiB);
  for (int round = 0; round < 8; ++round) {
    for (int64_t n = 0; n < 2; ++n) {
      SCOPED_TRACE(n);
      const DevicePtr a = zeros(bytes.size()), b = zeros(others.size());
      emulator::fail_event_record(n);
      const Event failing = device_->fetch(a, floats(bytes), 0);
      EXPECT_THROW(device_->join(failing), Error);
      device_->copy_in(a, last.data(), last.size());
      device_->wait(device_->record());
      device_->join(device_->fetch(b, floats(others), 0));
      EXPECT_TRUE(bytes_at(b, others.size()) == others);
      EXPECT_TRUE(bytes_at(a, last.size()) == last);
      device_->free(a);
      device_->free(b);
    }
  }
}
#endif

}  // namespace
}  // namespace tandem::gpu_test
