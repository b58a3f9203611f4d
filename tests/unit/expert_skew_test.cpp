// tandem synth --expert-skew: routers that choose some experts more often than others, by Zipf's law.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "gguf/file.h"
#include "support/gguf_bytes.h"
#include "tools/synth/expert_skew.h"
#include "tools/synth/random.h"
#include "tools/synth/synth.h"

namespace tandem::tools {
namespace {

TEST(ExpertSkew, SharesFollowTheLaw) {
  for (const double skew : {0.0, 0.5, 0.7, 1.0, 1.5}) {
    for (const auto& [n_expert, n_used] : {std::pair(128, 8), std::pair(32, 4), std::pair(512, 10)}) {
      const std::vector<double> shares = zipf_shares(n_expert, n_used, skew);
      EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), n_used, 1e-6);
      EXPECT_TRUE(std::is_sorted(shares.rbegin(), shares.rend()));
      EXPECT_LE(shares.front(), 0.45);
      const size_t r = static_cast<size_t>(n_expert) / 2;  // the limit is on those before
      EXPECT_NEAR(shares[2 * r - 1] / shares[r - 1], std::pow(2.0, -skew), 1e-6);
    }
  }
  for (const double share : zipf_shares(4, 2, 1)) EXPECT_EQ(share, 0.5);
}

// Of tokens with normally distributed logits: each expert is among the highest about as often as its share says.
TEST(ExpertSkew, RowsOfTheseLengthsAreChosenThatOften) {
  constexpr int kExperts = 128, kUsed = 8, kTokens = 20000;
  for (const double skew : {0.4, 0.7, 1.0}) {
    const std::vector<float> factors = skewed_row_factors(kExperts, kUsed, skew, 5);
    std::vector<int> uses(kExperts, 0), order(kExperts);
    std::vector<float> logits(kExperts);
    Random random(7);
    for (int t = 0; t < kTokens; ++t) {
      for (size_t e = 0; e < kExperts; ++e) {
        double normal = -6;
        for (int i = 0; i < 12; ++i) normal += random.uniform();
        logits[e] = factors[e] * static_cast<float>(normal);
      }
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + kUsed, order.end(), [&](int a, int b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (int i = 0; i < kUsed; ++i) ++uses[static_cast<size_t>(order[static_cast<size_t>(i)])];
    }
    std::sort(uses.rbegin(), uses.rend());
    const std::vector<double> shares = zipf_shares(kExperts, kUsed, skew);
    const auto first = [&](const auto& of, size_t n, double whole) {
      return std::accumulate(of.begin(), of.begin() + static_cast<int64_t>(n), 0.0) / whole;
    };
    for (const size_t n : {8u, 32u, 64u}) {
      EXPECT_NEAR(first(uses, n, kUsed * kTokens), first(shares, n, kUsed), 0.05) << skew << " of " << n;
    }
  }
  EXPECT_NE(skewed_row_factors(kExperts, kUsed, 1, 5), skewed_row_factors(kExperts, kUsed, 1, 6));
}

TEST(ExpertSkew, ChangesTheRoutersAlone) {
  test::TempDir directory;
  Shape shape = *find_shape("qwen3-30b-a3b");
  shape.n_layer = 2;
  shape.n_embd = 256;
  shape.n_ff_expert = 256;
  shape.n_expert = 24;
  shape.n_expert_used = 2;
  shape.vocab = VocabKind::spm_llama;
  shape.n_vocab = 4096;
  const auto write = [&](const char* name, double skew) {
    SynthOptions options;
    options.expert_skew = skew;
    write_synthetic_model(shape, options, directory.path(name));
    return GgufFile(directory.path(name));
  };
  const GgufFile equal = write("equal.gguf", 0), skewed = write("skewed.gguf", 0.7);
  int n_routers = 0;
  for (const TensorInfo& t : equal.tensors()) {
    const TensorInfo* other = skewed.find_tensor(t.name);
    ASSERT_NE(other, nullptr);
    const bool is_router = t.name.find("ffn_gate_inp") != std::string::npos;
    EXPECT_EQ(memcmp(t.data, other->data, t.n_bytes) != 0, is_router) << t.name;
    if (!is_router) continue;
    ++n_routers;
    const auto* a = reinterpret_cast<const float*>(t.data);
    const auto* b = reinterpret_cast<const float*>(other->data);
    const int64_t k = shape.n_embd;
    for (int64_t e = 0; e < shape.n_expert; ++e) {  // rows keep their direction
      EXPECT_NEAR(b[e * k + 3] / a[e * k + 3], b[e * k] / a[e * k], 1e-4f);
    }
  }
  EXPECT_EQ(n_routers, 2);
}

}  // namespace
}  // namespace tandem::tools
