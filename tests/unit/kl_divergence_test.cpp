// Saved logits and the divergence from them, against sums written out here; the command as a process.
#include "tools/perplexity/kl_divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>

#include "base/error.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"

namespace tandem::tools {
namespace {

using testing::HasSubstr;

std::vector<float> normal_logits(size_t n, unsigned seed, float spread = 2) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> logits(n);
  for (float& v : logits) v = normal(random);
  return logits;
}

double log_probability(const std::vector<float>& logits, size_t i) {
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v));
  return logits[i] - std::log(sum);
}

TEST(BaseLogits, PackedRowsAreCloseAndBounded) {
  const std::vector<float> logits = normal_logits(1001, 1);
  std::vector<uint16_t> room(1002);
  const PackedLogits packed = pack_logits(logits, room);
  ASSERT_EQ(packed.q.size(), logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    EXPECT_NEAR(packed.log_probability(i), log_probability(logits, i), 2e-4);
  }
  std::vector<float> wide(10, -100.0f);
  wide[3] = 5.0f;
  const PackedLogits cut = pack_logits(wide, room);
  EXPECT_NEAR(cut.log_probability(0), -16, 1e-3);
  EXPECT_NEAR(cut.log_probability(3), 0, 1e-3);
  const std::vector<float> flat(10, 1.5f);
  EXPECT_NEAR(pack_logits(flat, room).log_probability(7), -std::log(10.0), 1e-5);
}

TEST(BaseLogits, FileHasTheLayoutThatOthersRead) {
  test::TempDir directory;
  const std::string path = directory.path("base");
  TextChunks chunks;
  chunks.n_ctx = 4;
  chunks.n_chunks = 2;
  chunks.tokens = {1, 0, 2, 1, 0, 2, 2, 1, 2};  // one more than whole chunks
  BaseLogitsWriter writer(path, chunks, 3);
  const std::vector<float> a{0, 1, 2}, b{3, 1, 0};
  writer.add(a);
  writer.add(b);
  writer.finish();
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  ASSERT_EQ(bytes.size(), 8u + 3 * 4 + 8 * 4 + 2 * (8 + 4 * 2));
  EXPECT_EQ(bytes.substr(0, 8), "_logits_");
  const auto number = [&](size_t at) {
    int32_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  EXPECT_EQ(number(8), 4);
  EXPECT_EQ(number(12), 3);
  EXPECT_EQ(number(16), 2);
  EXPECT_EQ(number(20 + 4 * 2), 2);

  BaseLogitsReader reader(path);
  EXPECT_EQ(reader.n_vocab(), 3);
  EXPECT_EQ(reader.chunks().chunk(1)[1], 2);
  EXPECT_NEAR(reader.row(0).log_probability(1), log_probability(a, 1), 1e-4);
  EXPECT_NEAR(reader.row(1).log_probability(0), log_probability(b, 0), 1e-4);

  for (const size_t n : {bytes.size() - 1, size_t{30}, size_t{19}, size_t{0}}) {
    test::write_file(path, std::string_view(bytes).substr(0, n));
    EXPECT_THROW(BaseLogitsReader{path}, Error) << n;
  }
  std::string wrong = bytes;
  wrong[20] = 3;  // a token outside the vocabulary
  test::write_file(path, wrong);
  EXPECT_THROW(BaseLogitsReader{path}, Error);
  wrong = bytes;
  wrong[0] = 'x';
  test::write_file(path, wrong);
  EXPECT_THROW(BaseLogitsReader{path}, Error);
}

TEST(Sample, MeanErrorAndQuantiles) {
  Sample sample;
  for (const double v : {4.0, 1.0, 3.0, 2.0}) sample.add(v);
  EXPECT_DOUBLE_EQ(sample.mean().value, 2.5);
  EXPECT_DOUBLE_EQ(sample.mean().error, std::sqrt(1.25 / 3));
  EXPECT_DOUBLE_EQ(sample.quantile(0), 1);
  EXPECT_DOUBLE_EQ(sample.quantile(0.5), 2.5);
  EXPECT_DOUBLE_EQ(sample.quantile(1), 4);
  EXPECT_DOUBLE_EQ(sample.covariance_of_means(sample), sample.mean().error * sample.mean().error);
}

TEST(KlDivergence, IsTheSumOverTheVocabulary) {
  constexpr size_t kVocab = 50;
  KlDivergence divergence;
  double kld = 0, nll = 0, base_nll = 0;
  int n_same = 0;
  constexpr int kTokens = 20;
  std::vector<uint16_t> room(kVocab);
  for (unsigned t = 0; t < kTokens; ++t) {
    const std::vector<float> base = normal_logits(kVocab, 2 * t), other = normal_logits(kVocab, 2 * t + 1);
    std::vector<float> mine = base;
    for (size_t i = 0; i < kVocab; ++i) mine[i] += 0.2f * other[i];
    divergence.add(mine, pack_logits(base, room), static_cast<int32_t>(t));
    for (size_t i = 0; i < kVocab; ++i) {
      kld += std::exp(log_probability(base, i)) * (log_probability(base, i) - log_probability(mine, i));
    }
    nll -= log_probability(mine, t);
    base_nll -= log_probability(base, t);
    n_same += std::max_element(mine.begin(), mine.end()) - mine.begin() ==
              std::max_element(base.begin(), base.end()) - base.begin();
  }
  EXPECT_NEAR(divergence.kld().mean().value, kld / kTokens, 1e-3);
  EXPECT_GT(divergence.kld().mean().value, 0.01);
  EXPECT_NEAR(divergence.log_ratio().value, (nll - base_nll) / kTokens, 1e-3);
  EXPECT_NEAR(divergence.perplexity().value, std::exp(nll / kTokens), 1e-3 * std::exp(nll / kTokens));
  EXPECT_DOUBLE_EQ(divergence.same_top().value, n_same / static_cast<double>(kTokens));
  EXPECT_LT(n_same, kTokens);
  // Both vary together, so their ratio is more precise than either.
  EXPECT_LT(divergence.log_ratio().error, divergence.perplexity().error / divergence.perplexity().value);
}

class KlCommand : public testing::Test {
 protected:
  void SetUp() override {
    TANDEM_NEED_BINARY();
    test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F16}).write(directory.path("m.gguf"));
    std::ofstream text(directory.path("t.txt"));
    for (int i = 0; i < 60; ++i) text << "some words of no meaning, line " << i << '\n';
  }
  test::Outcome run(const std::string& arguments) {
    return test::shell("cd '" + directory.path("") + "' &&", arguments + " 2>&1");
  }
  test::TempDir directory;
};

TEST_F(KlCommand, ZeroAgainstItselfAndMoreAgainstItsQuantization) {
  ASSERT_EQ(run("quantize m.gguf q.gguf Q2_K 2").exit_code, 0);
  test::Outcome got = run("perplexity -m m.gguf -f t.txt -c 64 --chunks 8 --kl-divergence-base base");
  ASSERT_EQ(got.exit_code, 0) << got.out;
  const auto kld = [&](const char* model) {
    got = run(std::string("perplexity --kl-divergence --kl-divergence-base base -m ") + model);
    EXPECT_EQ(got.exit_code, 0) << got.out;
    const size_t at = got.out.find("Mean    KLD:");
    return at == std::string::npos ? -1.0 : std::stod(got.out.substr(at + 12));
  };
  EXPECT_NEAR(kld("m.gguf"), 0, 1e-4);
  EXPECT_THAT(got.out, HasSubstr("Same top p: 100.000"));
  EXPECT_GT(kld("q.gguf"), 1e-4);
  EXPECT_EQ(run("perplexity --kl-divergence -m m.gguf").exit_code, 2);
  EXPECT_EQ(run("perplexity --kl-divergence --kl-divergence-base t.txt -m m.gguf").exit_code, 3);
  EXPECT_EQ(run("perplexity -m m.gguf -f t.txt -c 64 --kl-divergence-base t.txt").exit_code, 2);
  test::tiny_llama({.n_vocab = 301}).write(directory.path("other.gguf"));
  EXPECT_EQ(run("perplexity --kl-divergence --kl-divergence-base base -m other.gguf").exit_code, 3);
}

}  // namespace
}  // namespace tandem::tools
