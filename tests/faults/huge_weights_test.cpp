// Weights that the CPU computes with move to huge pages: when, which, how much at a time, and that nobody notices.
#include "exec/huge_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "engine/held_weights.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

// The policy alone, on made-up addresses that nobody reads.
class HugePolicy : public testing::Test {
 protected:
  static constexpr size_t kMiB = size_t{1} << 20;

  // A product with a weight of so many MiB; with experts, of a mixture that uses two of `n_mats`.
  void add(size_t mib, bool in_file = true, int64_t n_mats = 1, size_t gap = 0) {
    next_ += gap;
    const auto n_floats = static_cast<int64_t>(mib * kMiB / 4);
    weights_.push_back({"w", DType::F32, n_mats, 1, n_floats / n_mats, next_, 0, in_file});
    next_ += mib * kMiB;
    const auto id = static_cast<TensorId>(graph_.tensors.size());
    Tensor tensor;
    tensor.role = Role::weight;
    tensor.weight = &weights_.back();
    graph_.tensors.push_back(tensor);
    Node node;
    if (n_mats > 1) {
      MoeFfnOp op;
      op.n_expert = n_mats;
      op.n_used = 2;
      op.up = id;
      node.op = op;
    } else {
      LinearOp op;
      op.weight = id;
      node.op = op;
    }
    graph_.nodes.push_back(node);
    partition_.weights.resize(1);
    partition_.weights[0].push_back(id);
  }
  size_t step(HugeWeights& huge, int n = 1) {
    for (int i = 0; i < n; ++i) huge.begin_step(graph_, partition_);
    return huge.n_bytes();
  }
  HoldBytes hold() {
    return [this](std::span<const std::byte> bytes) {
      if (!has_memory_) return false;
      held_.push_back(bytes);
      return true;
    };
  }

  const std::byte* next_ = reinterpret_cast<const std::byte*>((size_t{1} << 40) + 12345 * 32);
  std::deque<Weight> weights_;
  Graph graph_;
  Partition partition_;
  std::vector<std::span<const std::byte>> held_;
  bool has_memory_ = true;
};

TEST_F(HugePolicy, BeginsAfterSomeStepsAndMovesAPartInEach) {
  for (int i = 0; i < 40; ++i) add(32);
  HugeWeights huge(hold(), false);
  EXPECT_EQ(step(huge, HugeWeights::kReadsBefore), 0u);
  const size_t all = 1280 * kMiB, part = all / HugeWeights::kStepParts;
  for (size_t i = 1; i <= HugeWeights::kStepParts; ++i) {
    EXPECT_NEAR(static_cast<double>(step(huge)), static_cast<double>(i * part), 4.0 * kMiB);
  }
  step(huge);
  EXPECT_EQ(huge.n_bytes(), all);
  EXPECT_TRUE(huge.is_done());
  // Adjacent pieces that meet where a huge page ends.
  for (size_t i = 1; i < held_.size(); ++i) {
    EXPECT_EQ(held_[i].data(), held_[i - 1].data() + held_[i - 1].size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(held_[i].data()) % (2 * kMiB), 0u);
  }
  const size_t n = held_.size();
  step(huge, 10);
  EXPECT_EQ(held_.size(), n);
}

TEST_F(HugePolicy, AtOnceAllInTheFirstStep) {
  add(100);
  add(100, true, 1, kMiB);
  HugeWeights huge(hold(), true);
  EXPECT_FALSE(huge.is_done());
  EXPECT_EQ(step(huge), 200 * kMiB);
  EXPECT_TRUE(huge.is_done());
  EXPECT_EQ(held_.size(), 2u);  // what lies between them stays
}

// Experts are read less often. What is not of a file has its pages already.
TEST_F(HugePolicy, ExpertsLaterAndNothingThatIsNotOfAFile) {
  add(8);
  add(8, true, 16);
  add(8, false);
  HugeWeights huge(hold(), false);
  EXPECT_EQ(step(huge, HugeWeights::kReadsBefore + 1), 8 * kMiB);
  EXPECT_EQ(step(huge, 7 * HugeWeights::kReadsBefore - 1), 8 * kMiB);
  EXPECT_EQ(step(huge, 1), 16 * kMiB);
  EXPECT_TRUE(huge.is_done());
}

TEST_F(HugePolicy, StopsWithoutMemory) {
  for (int i = 0; i < 10; ++i) add(32);
  HugeWeights huge(hold(), false);
  EXPECT_GT(step(huge, HugeWeights::kReadsBefore + 1), 0u);
  const size_t moved = huge.n_bytes();
  has_memory_ = false;
  EXPECT_EQ(step(huge), moved);
  EXPECT_TRUE(huge.is_done());
  has_memory_ = true;
  EXPECT_EQ(step(huge), moved);
}

class HugePages : public test::SplitRig {
 protected:
  void SetUp() override {
    if (!grants_huge_pages()) GTEST_SKIP() << "this system has no huge pages";
    load_both(3);
  }
  // Logits of a prompt, then of tokens one by one.
  static std::vector<float> logits_of(Session& session, int n_single) {
    std::vector<float> all;
    const auto add = [&](std::span<const float> row) { all.insert(all.end(), row.begin(), row.end()); };
    add(session.append(prompt(30)));
    for (const int32_t id : prompt(n_single)) add(session.append(std::span(&id, 1)));
    return all;
  }
};

TEST_F(HugePages, LogitsAreTheSame) {
  const auto host = cpu::make_cpu_device({1, 2});
  for (Model* model : {dense_.get(), moe_.get()}) {
    std::vector<float> expected;
    for (const Toggle toggle : {Toggle::off, Toggle::automatic, Toggle::on}) {
      OffloadOptions flags;
      flags.huge_pages = toggle;
      Session session(*model, {host.get()}, options(flags));
      const std::vector<float> got = logits_of(session, 60);
      if (toggle == Toggle::off) expected = got;
      EXPECT_EQ(got, expected);
      const HugeWeights* huge = session.executor().huge_weights();
      // automatic: not on a machine with little free memory, or with several NUMA nodes.
      const Footprint& bytes = session.placement().bytes;
      ASSERT_EQ(huge != nullptr, takes_huge_pages(toggle, *model, bytes, *host));
      EXPECT_TRUE(huge == nullptr || toggle != Toggle::off);
      EXPECT_TRUE(huge != nullptr || toggle != Toggle::on);
      if (huge == nullptr) continue;
      EXPECT_TRUE(huge->is_done());
      EXPECT_GT(huge->n_bytes(), 0u);
      EXPECT_LT(huge->n_bytes(), bytes.mapped_weights + 1);
    }
  }
}

}  // namespace
}  // namespace tandem
