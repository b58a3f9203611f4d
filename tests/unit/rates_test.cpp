// Device speeds: measuring, caching, and their use in the cost model.
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <thread>

#include "cpu/cpu_device.h"
#include "plan/disk_rate.h"
#include "plan/peer_rates.h"
#include "plan/rates.h"
#include "support/gguf_bytes.h"
#include "support/planned_machine.h"

namespace tandem {
namespace {

using test::kPlannerGpu;
using test::kPlannerHost;

TEST(Rates, AreMeasured) {
  const auto cpu = cpu::make_cpu_device({1, 1});
  const DeviceRates r = measure_rates(*cpu);
  EXPECT_GT(r.read_bytes_per_s, 1e8);
  EXPECT_LT(r.read_bytes_per_s, 1e13);
  EXPECT_GT(r.ops_per_s, 1e8);
  EXPECT_GE(r.memory_bytes_per_s, r.read_bytes_per_s);
  EXPECT_GE(r.stage_s, 0);
  EXPECT_LT(r.stage_s, 0.1);
  for (const double ops : {r.float_ops_per_s, r.attention_ops_per_s, r.single_attention_ops_per_s}) {
    EXPECT_GT(ops, 1e7);
    EXPECT_LT(ops, 1e15);
  }
}

TEST(Rates, AreRemembered) {
  test::TempDir directory;
  const std::string path = directory.path("deep/er/rates");
  const RatesCache cache(path);
  EXPECT_FALSE(cache.find("CPU: x"));
  cache.remember("CPU: x", kPlannerHost);
  cache.remember("GPU: y", kPlannerGpu);
  ASSERT_TRUE(cache.find("CPU: x"));
  EXPECT_NEAR(cache.find("CPU: x")->read_bytes_per_s, kPlannerHost.read_bytes_per_s, 1);
  EXPECT_NEAR(cache.find("GPU: y")->ops_per_s, kPlannerGpu.ops_per_s, 1);
  DeviceRates with_memory = kPlannerHost;
  with_memory.memory_bytes_per_s = 123e9;
  with_memory.float_ops_per_s = 9e9;
  with_memory.attention_ops_per_s = 7e9;
  with_memory.single_attention_ops_per_s = 3e9;
  with_memory.peer_bytes_per_s = 5e9;
  with_memory.peer_s = 2e-5;
  cache.remember("CPU: z", with_memory, Measured::disturbed);
  EXPECT_NEAR(cache.find("CPU: z")->memory_bytes_per_s, 123e9, 1);
  EXPECT_NEAR(cache.find("CPU: z")->float_ops_per_s, 9e9, 1);
  EXPECT_NEAR(cache.find("CPU: z")->attention_ops_per_s, 7e9, 1);
  EXPECT_NEAR(cache.find("CPU: z")->single_attention_ops_per_s, 3e9, 1);
  EXPECT_NEAR(cache.find("CPU: z")->peer_bytes_per_s, 5e9, 1);
  EXPECT_NEAR(cache.find("CPU: z")->peer_s, 2e-5, 1e-9);
  EXPECT_FALSE(cache.find("CPU"));
  cache.remember("CPU: x", kPlannerGpu);  // the last one counts
  EXPECT_NEAR(cache.find("CPU: x")->read_bytes_per_s, kPlannerGpu.read_bytes_per_s, 1);
  EXPECT_FALSE(RatesCache("").find("CPU: x"));
}

// Takes 2 ms for each sum, and a second for a GB of a summand.
class SlowSums final : public Collectives {
 public:
  SlowSums() : Collectives(kUsualLimitS) {}
  std::string_view name() const override { return "slow"; }
  void begin_all_reduce(std::span<const CollectivePart> parts, size_t n_rows) override {
    const auto n = static_cast<double>(parts.size());
    const double n_bytes = static_cast<double>(n_rows * parts[0].n_cols * sizeof(float));
    std::this_thread::sleep_for(std::chrono::duration<double>(2e-3 + 2 * (n - 1) / n * n_bytes / 1e9));
  }
  std::span<const Event> end_all_reduce() override { return {}; }
  void all_gather(std::span<const CollectivePart>, size_t) override {}
};

TEST(Rates, OfSumsAreThoseOfTheirLibrary) {
  const auto a = cpu::make_cpu_device({1, 1}), b = cpu::make_cpu_device({1, 1}),
             c = cpu::make_cpu_device({1, 1});
  SlowSums sums;
  for (const std::vector<Device*>& devices :
       {std::vector<Device*>{a.get(), b.get()}, {a.get(), b.get(), c.get()}}) {
    const PeerRates peers = measure_peers(sums, devices);
    EXPECT_GE(peers.seconds, 2e-3);
    EXPECT_LE(peers.seconds, 5e-3);
    EXPECT_GE(peers.bytes_per_s, 0.7e9);  // sleeps may take longer
    EXPECT_LE(peers.bytes_per_s, 1.2e9);
  }
  // Devices that NCCL does not know have no such rates.
  std::vector<DeviceRates> rates(3);
  add_peer_rates(std::vector<Device*>{a.get(), b.get(), c.get()}, RatesCache(""), rates);
  for (const DeviceRates& r : rates) EXPECT_EQ(r.peer_bytes_per_s, 0);
}

TEST(Rates, DisksAreMeasuredOnce) {
  test::TempDir directory;
  const std::string path = directory.path("file");
  const RatesCache cache(directory.path("rates"));
  const auto files = [&](size_t n_bytes) {
    test::write_file(path, std::string(n_bytes, 'x'));
    return std::vector<DiskFile>{{path, {reinterpret_cast<const std::byte*>(4096), n_bytes}}};
  };
  EXPECT_EQ(disk_rate_of(files(size_t{1} << 20), cache), 0);  // too small to measure
  const double rate = disk_rate_of(files(size_t{160} << 20), cache);
  EXPECT_GT(rate, 1e6);
  EXPECT_LT(rate, 1e12);
  EXPECT_NEAR(disk_rate_of(files(size_t{1} << 20), cache), rate, 1e-4 * rate);
}

class RatesFile : public testing::Test {
 protected:
  RatesFile() : path_(directory_.path("rates")), cache_(path_) { cache_.remember("CPU: x", kPlannerHost); }
  // "numbers<tab>key", the last line written.
  std::pair<std::string, std::string> line() const {
    std::ifstream in(path_);
    std::string line, last;
    while (std::getline(in, line)) last = line;
    const size_t tab = last.find('\t');
    return {last.substr(0, tab), last.substr(tab)};
  }
  void append(const std::string& numbers, const std::string& key) const {
    std::ofstream(path_, std::ios::app) << numbers << key << "\n";
  }
  test::TempDir directory_;
  std::string path_;
  RatesCache cache_;
};

TEST_F(RatesFile, InvalidLinesAreIgnored) {
  const auto [numbers, key] = line();
  const std::string until = numbers.substr(0, numbers.find(' '));
  for (const char* bad : {"", "1 2 3", "0 1 1 1 1 1 1 1 1", "-1 1 1 1 1 1 1 1 1", "1 1 1 1 1 -1 1 1 1",
                          "nan 1 1 1 1 1 1 1 1", "inf 1 1 1 1 1 1 1 1", "a b c d e f g h i",
                          "1 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1 1x"}) {
    std::ofstream(path_) << until << " " << bad << key << "\n";
    EXPECT_FALSE(cache_.find("CPU: x")) << bad;
  }
  std::ofstream(path_) << "soon 1 1 1 1 1 1 1 1 1" << key << "\n";
  EXPECT_FALSE(cache_.find("CPU: x"));
}

TEST_F(RatesFile, LinesOfOtherVersionsAreSkipped) {
  const auto [numbers, key] = line();
  append("1e9 1e9 1e9 0 0 1e9", key);
  ASSERT_TRUE(cache_.find("CPU: x"));
  EXPECT_NEAR(cache_.find("CPU: x")->read_bytes_per_s, kPlannerHost.read_bytes_per_s, 1);
}

TEST_F(RatesFile, RatesExpire) {
  const auto seconds_left = [&] {
    return std::stoll(line().first) - static_cast<long long>(std::time(nullptr));
  };
  EXPECT_GT(seconds_left(), 24 * 3600);
  cache_.remember("CPU: x", kPlannerHost, Measured::disturbed);
  EXPECT_LT(seconds_left(), 3600);
  EXPECT_GT(seconds_left(), 0);
  const auto entry = line();  // by name, because clang 14 has no captures of structured bindings
  const std::string rates = entry.first.substr(entry.first.find(' '));
  const auto holds_until = [&](int64_t until) {
    std::ofstream(path_) << until << rates << entry.second << "\n";
    return cache_.find("CPU: x").has_value();
  };
  EXPECT_TRUE(holds_until(std::time(nullptr) + 60));
  EXPECT_FALSE(holds_until(std::time(nullptr) - 1));
  EXPECT_FALSE(holds_until(std::time(nullptr) + int64_t{365} * 24 * 3600));  // the clock was wrong
}

TEST(Cost, OpsHaveTheirOwnPaces) {
  const NodeWork product{.n_bytes = 1e6, .n_ops = 1e9};
  const NodeWork floats{.n_bytes = 1e6, .n_ops = 1e9, .pace = &DeviceRates::float_ops_per_s};
  const NodeWork prompt{.n_bytes = 1e6, .n_ops = 1e9, .pace = &DeviceRates::attention_ops_per_s};
  const NodeWork single{.n_bytes = 1e6, .n_ops = 1e9, .pace = &DeviceRates::single_attention_ops_per_s};
  DeviceRates rates{1e9, 1e12, 1e9};
  for (const NodeWork& work : {product, floats, prompt, single})
    EXPECT_NEAR(node_seconds(work, rates), 1e-3, 1e-9);
  rates.float_ops_per_s = 5e11;
  rates.attention_ops_per_s = 1e11;
  rates.single_attention_ops_per_s = 2e10;
  EXPECT_NEAR(node_seconds(product, rates), 1e-3, 1e-9);
  EXPECT_NEAR(node_seconds(floats, rates), 2e-3, 1e-9);
  EXPECT_NEAR(node_seconds(prompt, rates), 1e-2, 1e-9);
  EXPECT_NEAR(node_seconds(single, rates), 5e-2, 1e-9);
  rates.in_turn = true;
  EXPECT_NEAR(node_seconds(product, rates), 2e-3, 1e-9);
  EXPECT_NEAR(node_seconds(floats, rates), 3e-3, 1e-9);
  EXPECT_NEAR(node_seconds(prompt, rates), 1e-2, 1e-9);
}

}  // namespace
}  // namespace tandem
