#include "base/numa.h"

#include <gmock/gmock.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <thread>

#include "base/thread_pool.h"
#include "support/gguf_bytes.h"

namespace tandem {
namespace {

using testing::ElementsAre;

TEST(Numa, EveryProcessorBelongsToOneNodeAndThreadsCanBeBound) {
  const auto nodes = numa_nodes();
  ASSERT_FALSE(nodes.empty());
  std::set<int> seen;
  for (const NumaNode& node : nodes) {
    for (int cpu : node.cpus) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
  }
  EXPECT_GE(static_cast<int>(seen.size()), physical_core_count());
  EXPECT_LT(current_numa_node(nodes), nodes.size());
  // A bound thread still knows them all.
  std::thread([&] {
    EXPECT_TRUE(bind_thread({nodes[0].cpus[0]}));
    EXPECT_EQ(numa_nodes().size(), nodes.size());
    EXPECT_THAT(numa_nodes()[0].cpus, testing::ElementsAreArray(nodes[0].cpus));
    EXPECT_GE(static_cast<int>(seen.size()), physical_core_count());
    EXPECT_THAT(process_cpus(), testing::ElementsAreArray(seen));
  }).join();
}

// A machine whose files say that it has four nodes, one of them with memory alone.
TEST(Numa, NodesKeepTheirNumbers) {
  const int cpu = numa_nodes()[0].cpus[0];
  const test::TempDir folder;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder.path(name)).parent_path());
    std::ofstream(folder.path(name)) << text << '\n';
  };
  write("online", "0,2-4");
  write("node0/cpulist", "");
  write("node2/cpulist", "5000-5003");  // none that this process may run on
  write("node3/cpulist", std::to_string(cpu));
  write("node4/cpulist", "-3-x");
  const auto nodes = numa_nodes(folder.path(""));
  ASSERT_EQ(nodes.size(), 1u);
  EXPECT_EQ(nodes[0].id, 3);
  EXPECT_THAT(nodes[0].cpus, ElementsAre(cpu));
  write("online", "");
  EXPECT_EQ(numa_nodes(folder.path(""))[0].id, 0) << "without files, all processors are of one node";
}

TEST(Numa, SharesDivideEverythingInOrder) {
  std::mt19937 rng(std::random_device{}());
  for (int round = 0; round < 200; ++round) {
    std::vector<NumaNode> nodes(1 + rng() % 8);
    int64_t n_cpus = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      nodes[i].id = static_cast<int>(i);
      nodes[i].cpus.resize(1 + rng() % 64);
      n_cpus += static_cast<int64_t>(nodes[i].cpus.size());
    }
    const NodeShares shares(nodes);
    const auto n = static_cast<int64_t>(rng() % 200000);
    EXPECT_EQ(shares.begin(0, n), 0);
    EXPECT_EQ(shares.begin(shares.size(), n), n);
    for (size_t i = 0; i < nodes.size(); ++i) {
      const int64_t begin = shares.begin(i, n), end = shares.begin(i + 1, n);
      const double fair =
          static_cast<double>(n) * static_cast<double>(nodes[i].cpus.size()) / static_cast<double>(n_cpus);
      EXPECT_LE(std::abs(static_cast<double>(end - begin) - fair), 1.0);
      if (begin < end) {
        EXPECT_EQ(shares.node_of(begin, n), i);
        EXPECT_EQ(shares.node_of(end - 1, n), i);
      }
    }
  }
  EXPECT_EQ(NodeShares().begin(1, 7), 7);
  EXPECT_EQ(NodeShares().node_of(6, 7), 0u);
}

int policy_of(void* address) {
  int policy = -1;
  if (syscall(SYS_get_mempolicy, &policy, nullptr, 0ul, address, MPOL_F_ADDR) != 0) return -1;
  return policy;
}

TEST(Numa, PagesArePlacedAndTheirEdgesAreNot) {
  constexpr size_t kPages = 6, kPage = 4096;
  auto* memory = static_cast<std::byte*>(
      mmap(nullptr, kPages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(memory, MAP_FAILED);
  if (policy_of(memory) < 0) GTEST_SKIP() << "this system has no memory policies";
  const int id = numa_nodes()[0].id;
  if (!place_on_node(memory + 100, 3 * kPage, id)) GTEST_SKIP() << "this system refuses memory policies";
  const int usual = policy_of(memory + 5 * kPage);
  EXPECT_EQ(policy_of(memory), usual);
  EXPECT_EQ(policy_of(memory + kPage), MPOL_PREFERRED);
  EXPECT_EQ(policy_of(memory + 2 * kPage), MPOL_PREFERRED);
  EXPECT_EQ(policy_of(memory + 3 * kPage), usual);
  EXPECT_TRUE(interleave(memory, kPages * kPage, NodeShares())) << "one node: nothing to do";
  EXPECT_EQ(policy_of(memory), usual);
  EXPECT_FALSE(place_on_node(memory, kPage, 1 << 20));
  EXPECT_FALSE(place_on_node(memory, kPage, 1000)) << "no machine of ours has so many nodes";
  munmap(memory, kPages * kPage);
}

}  // namespace
}  // namespace tandem
