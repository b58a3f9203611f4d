// A cache in host memory takes memory as tokens are written, not when the session is made: measured at 1k, 8k and 32k tokens of
// a context of 32k, it is what the plan of a context of that size says.
#include <fstream>

#include "base/sanitized.h"
#include "support/split_rig.h"

namespace tandem {
namespace {

// Memory of this process that is no file's, as the system counts its pages.
size_t anonymous_bytes() {
  std::ifstream status("/proc/self/smaps_rollup");
  for (std::string word; status >> word;) {
    size_t kib = 0;
    if (word == "Anonymous:" && status >> kib) return kib << 10;
  }
  return 0;
}

class GrowingContext : public test::SplitRig {
 protected:
  static constexpr int64_t kContext = 32768;
  static constexpr size_t kMiB = 1u << 20, kHugePage = 2 * kMiB;

  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer takes memory of its own for every page";
    if (anonymous_bytes() == 0) GTEST_SKIP() << "no /proc/self/smaps_rollup";
    test::TinyShape shape;
    shape.n_layer = 1;
    shape.n_embd = 128;
    shape.n_head = shape.n_head_kv = 2;  // 1 KiB of cache for a token
    model_ = load("tiny.gguf", shape);
    host_ = cpu::make_cpu_device({2, 2});
  }

  static EngineOptions options(int64_t n_ctx) {
    EngineOptions o = SplitRig::options({}, DType::F32);
    o.context.n_ctx = n_ctx;
    o.context.n_ubatch = 512;
    return o;
  }
  // What the plan of a context says, without weights, which are mapped.
  DeviceBytes planned(int64_t n_ctx) {
    DeviceBytes bytes = Session(*model_, {host_.get()}, options(n_ctx)).placement().bytes.devices[0];
    bytes.weights = 0;
    return bytes;
  }

  std::unique_ptr<Model> model_;
};

TEST_F(GrowingContext, MemoryFollowsTheTokens) {
  const std::vector<int64_t> lengths{1024, 8192, kContext};
  std::vector<DeviceBytes> plans;
  for (const int64_t n : lengths) plans.push_back(planned(n));
  ASSERT_EQ(plans.back().kv, size_t{kContext} << 10);
  const std::vector<int32_t> tokens = prompt(kContext);
  const size_t before = anonymous_bytes();
  Session session(*model_, {host_.get()}, options(kContext));
  EXPECT_LT(anonymous_bytes() - before, 3 * kMiB) << "for a session without tokens";
  size_t previous = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto n_past = static_cast<size_t>(session.n_past());
    session.append(std::span(tokens).subspan(n_past, static_cast<size_t>(lengths[i]) - n_past));
    const size_t found = anonymous_bytes() - before;
    printf("%lld tokens: %.1f MiB, planned %.1f, of them cache %.1f\n", static_cast<long long>(lengths[i]),
           static_cast<double>(found) / kMiB, static_cast<double>(plans[i].total()) / kMiB,
           static_cast<double>(plans[i].kv) / kMiB);
    EXPECT_GE(found, plans[i].kv);
    // Keys, values, activations and scratch each end in a huge page.
    EXPECT_LT(found, plans[i].total() + 4 * kHugePage);
    EXPECT_GT(found, previous);
    previous = found;
  }
}

// Blocks that are free again are the first ones to be taken, so a text that is cut back and goes on takes no more memory.
TEST_F(GrowingContext, BlocksAreUsedAgain) {
  Session session(*model_, {host_.get()}, options(kContext));
  const std::vector<int32_t> tokens = prompt(4096);
  session.append(tokens);
  const size_t once = anonymous_bytes();
  for (int i = 0; i < 8; ++i) {
    session.truncate(100 * i);
    session.append(std::span(tokens).subspan(static_cast<size_t>(session.n_past())));
  }
  EXPECT_LT(anonymous_bytes(), once + kMiB);
}

}  // namespace
}  // namespace tandem
