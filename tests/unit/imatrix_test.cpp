// tandem imatrix: the inputs of matrix products that the CPU device reports, sums over tokens and experts,
// files and merging; the command as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "base/error.h"
#include "cpu/cpu_device.h"
#include "engine/session.h"
#include "gguf/quants.h"
#include "support/gguf_bytes.h"
#include "support/process.h"
#include "support/tiny_model.h"
#include "tools/imatrix/collector.h"

namespace tandem::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Imatrix : public testing::Test {
 protected:
  static constexpr int64_t kTokens = 24;

  ImportanceSums collect(const test::TinyShape& shape, OutputTensor output, int n_threads,
                         int64_t n_ubatch = 512) {
    test::tiny_llama(shape).write(directory.path("model.gguf"));
    model = Model::load(directory.path("model.gguf"));
    ImportanceCollector collector(model->weights(), output);
    cpu::CpuOptions cpu;
    cpu.n_threads = n_threads;
    cpu.observer = [&](const cpu::ProductInput& input) { collector.observe(input); };
    const auto device = cpu::make_cpu_device(cpu);
    EngineOptions options;
    options.context.n_ctx = kTokens;
    options.context.n_ubatch = n_ubatch;
    options.context.all_logits = true;
    Session session(*model, {device.get()}, options);
    session.evaluate(tokens(), [](int64_t, int64_t, std::span<const float>) {});
    collector.check_finite();
    return collector.sums();
  }

  static std::vector<int32_t> tokens() {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < kTokens; ++i) ids.push_back(3 + i * 37 % 250);
    return ids;
  }

  // The input of the first layer's q, k and v, squared and summed: the normalized embeddings.
  std::vector<double> first_layer_sums() const {
    const TensorInfo& table = model->file().tensor("token_embd.weight");
    const TensorInfo& norm = model->file().tensor("blk.0.attn_norm.weight");
    const auto n = static_cast<size_t>(table.dims[0]);
    std::vector<float> x(n), weight(n);
    dequantize_row(norm.dtype, norm.data, weight.data(), table.dims[0]);
    std::vector<double> sums(n);
    for (const int32_t id : tokens()) {
      dequantize_row(table.dtype,
                     table.data + row_bytes(table.dtype, table.dims[0]) * static_cast<size_t>(id), x.data(),
                     table.dims[0]);
      double square = 0;
      for (const float v : x) square += static_cast<double>(v) * v;
      const double scale = 1 / std::sqrt(square / static_cast<double>(n) + model->hparams().norm_eps);
      for (size_t j = 0; j < n; ++j) sums[j] += std::pow(x[j] * scale * weight[j], 2);
    }
    return sums;
  }

  test::TempDir directory;
  std::unique_ptr<Model> model;
};

TEST_F(Imatrix, SumsSquaresOfWhatIsMultiplied) {
  for (const int64_t n_ubatch : {512, 7}) {
    const ImportanceSums sums = collect({}, OutputTensor::skip, 2, n_ubatch);
    EXPECT_EQ(sums.entries.size(), 2u * 7u);
    EXPECT_FALSE(sums.entries.contains("output.weight"));
    const std::vector<double> expected = first_layer_sums();
    for (const char* name : {"blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"}) {
      const ImportanceSums::Entry& entry = sums.entries.at(name);
      EXPECT_THAT(entry.counts, ElementsAre(kTokens));
      ASSERT_EQ(entry.sums.size(), expected.size());
      for (size_t j = 0; j < expected.size(); ++j)
        EXPECT_NEAR(entry.sums[j], expected[j], 1e-4 * expected[j]);
    }
    for (const auto& [name, entry] : sums.entries) {  // also the last layer, although few tokens need logits
      EXPECT_THAT(entry.counts, ElementsAre(kTokens)) << name;
      EXPECT_GT(*std::max_element(entry.sums.begin(), entry.sums.end()), 0.0f) << name;
    }
    EXPECT_EQ(sums.entries.at("blk.1.ffn_gate.weight").sums, sums.entries.at("blk.1.ffn_up.weight").sums);
  }
}

TEST_F(Imatrix, TheOutputMatrixIsOptional) {
  const ImportanceSums sums = collect({}, OutputTensor::include, 1);
  EXPECT_THAT(sums.entries.at("output.weight").counts, ElementsAre(kTokens));
}

TEST_F(Imatrix, ExpertsAreCountedSeparately) {
  const test::TinyShape shape{.n_expert = 6, .n_expert_used = 2};
  const ImportanceSums sums = collect(shape, OutputTensor::skip, 2);
  const auto& router = sums.entries.at("blk.0.ffn_gate_inp.weight");
  const auto& gate = sums.entries.at("blk.0.ffn_gate_exps.weight");
  const auto& up = sums.entries.at("blk.0.ffn_up_exps.weight");
  const auto& down = sums.entries.at("blk.0.ffn_down_exps.weight");
  ASSERT_EQ(gate.counts.size(), 6u);
  ASSERT_EQ(gate.sums.size(), 6u * 64u);
  ASSERT_EQ(down.sums.size(), 6u * 96u);
  EXPECT_EQ(gate.sums, up.sums);
  EXPECT_EQ(gate.counts, down.counts);
  double n = 0;
  for (const double count : gate.counts) n += count;
  EXPECT_EQ(n, 2 * kTokens);
  // Every token goes to two experts, so the sum over the experts is twice that of the router.
  for (size_t j = 0; j < 64; ++j) {
    double sum = 0;
    for (size_t e = 0; e < 6; ++e) sum += gate.sums[64 * e + j];
    EXPECT_NEAR(sum, 2 * router.sums[j], 1e-4 * router.sums[j]);
  }
  for (size_t e = 0; e < 6; ++e) {  // an expert without tokens has no sums
    const float largest = *std::max_element(down.sums.begin() + 96 * e, down.sums.begin() + 96 * (e + 1));
    EXPECT_EQ(largest > 0, down.counts[e] > 0) << e;
  }
}

TEST_F(Imatrix, FilesKeepEverythingAndMerge) {
  const test::TinyShape shape{.n_expert = 6, .n_expert_used = 2};
  ImportanceSums sums = collect(shape, OutputTensor::skip, 1);
  sums.n_chunks = 3;
  sums.chunk_size = kTokens;
  sums.datasets = {"a.txt"};
  const std::string path = directory.path("imatrix.gguf");
  write_imatrix(sums, path);
  ImportanceSums read = read_imatrix_sums(path);
  EXPECT_EQ(read.n_chunks, 3u);
  EXPECT_EQ(read.chunk_size, static_cast<uint32_t>(kTokens));
  EXPECT_THAT(read.datasets, ElementsAre("a.txt"));
  ASSERT_EQ(read.entries.size(), sums.entries.size());
  for (const auto& [name, entry] : sums.entries) {
    EXPECT_EQ(read.entries.at(name).sums, entry.sums);
    EXPECT_EQ(read.entries.at(name).counts, entry.counts);
  }
  sums.datasets = {"b.txt"};
  read.merge(sums);
  EXPECT_EQ(read.n_chunks, 6u);
  EXPECT_THAT(read.datasets, ElementsAre("a.txt", "b.txt"));
  for (const auto& [name, entry] : sums.entries) {
    EXPECT_FLOAT_EQ(read.entries.at(name).sums[5], 2 * entry.sums[5]);
    EXPECT_EQ(read.entries.at(name).counts[0], 2 * entry.counts[0]);
  }
  const ImportanceMatrix means = read_imatrix(path);
  const auto& gate = sums.entries.at("blk.0.ffn_gate_exps.weight");
  for (size_t e = 0; e < 6; ++e) {
    const float expected = gate.counts[e] > 0 ? gate.sums[64 * e] / static_cast<float>(gate.counts[e]) : 1.0f;
    EXPECT_FLOAT_EQ(means.find("blk.0.ffn_gate_exps.weight")->at(64 * e), expected);
  }
  ImportanceSums other;
  other.entries["blk.0.ffn_gate_exps.weight"] = {std::vector<float>(64), {1.0}};
  EXPECT_THROW(read.merge(other), Error);
}

// What the quantizers get is finite, whatever a file says.
TEST_F(Imatrix, RefusesCountsAndSumsWithoutAMean) {
  const std::string path = directory.path("bad.gguf");
  const auto refusal = [&](float sum, double count) -> std::string {
    ImportanceSums sums;
    sums.entries["w"] = {{1.0f, sum}, {count}};
    write_imatrix(sums, path);
    try {
      read_imatrix(path);
      return "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      return e.what();
    }
  };
  EXPECT_EQ(refusal(1.0f, 0.5), "accepted");
  EXPECT_EQ(refusal(1.0f, 0.0), "accepted");
  EXPECT_THAT(refusal(1.0f, NAN), HasSubstr("importance of w: count 0 is nan, needed a finite number"));
  EXPECT_THAT(refusal(1.0f, -2.0),
              HasSubstr("importance of w: count 0 is -2, needed a finite number of 0 or more"));
  EXPECT_THAT(refusal(1.0f, INFINITY), HasSubstr("count 0 is inf"));
  EXPECT_THAT(refusal(1e30f, 1e-20), HasSubstr("importance of w: value 1 is 1e+30 for too small a count"));
  ImportanceSums huge;
  huge.entries["w"] = {{3e38f}, {1.0}};
  EXPECT_THROW(huge.merge(ImportanceSums(huge)), Error);
}

TEST_F(Imatrix, Command) {
  TANDEM_NEED_BINARY();
  test::tiny_llama({.n_embd = 256, .n_ff = 512, .dtype = DType::F16}).write(directory.path("m.gguf"));
  {
    std::ofstream text(directory.path("t.txt"));
    for (int i = 0; i < 60; ++i) text << "some words of no meaning, line " << i << '\n';
  }
  const auto run = [&](const std::string& arguments) {
    return test::shell("cd '" + directory.path("") + "' &&", arguments + " 2>&1");
  };
  test::Outcome got =
      run("imatrix -m m.gguf -f t.txt -o i.gguf -c 64 --chunks 5 -ofreq 2 --save-frequency 4");
  ASSERT_EQ(got.exit_code, 0) << got.out;
  ImportanceSums five = read_imatrix_sums(directory.path("i.gguf"));
  EXPECT_EQ(five.n_chunks, 5u);
  EXPECT_EQ(five.entries.at("blk.0.attn_q.weight").counts[0], 5 * 64);
  EXPECT_EQ(read_imatrix_sums(directory.path("i.gguf.at_4")).n_chunks, 4u);
  // The first two chunks, then the other three added to them.
  ASSERT_EQ(run("imatrix -m m.gguf -f t.txt -o a.gguf -c 64 --chunks 2").exit_code, 0);
  ASSERT_EQ(run("imatrix -m m.gguf -f t.txt -o b.gguf -c 64 --chunk 2 --chunks 5 --in-file a.gguf").exit_code,
            0);
  const ImportanceSums both = read_imatrix_sums(directory.path("b.gguf"));
  EXPECT_EQ(both.n_chunks, 5u);
  for (const auto& [name, entry] : five.entries) {
    for (size_t j = 0; j < entry.sums.size(); ++j) {
      EXPECT_NEAR(both.entries.at(name).sums[j], entry.sums[j], 1e-4 * entry.sums[j]) << name;
    }
  }
  EXPECT_EQ(run("imatrix --in-file a.gguf --in-file b.gguf -o c.gguf").exit_code, 0);
  EXPECT_EQ(read_imatrix_sums(directory.path("c.gguf")).n_chunks, 7u);
  got = run("quantize --imatrix i.gguf m.gguf q.gguf Q4_K_M 2");
  EXPECT_EQ(got.exit_code, 0) << got.out;
  EXPECT_THAT(got.out, HasSubstr("with importance"));
  EXPECT_EQ(run("imatrix -m m.gguf").exit_code, 2);
  EXPECT_EQ(run("imatrix -m m.gguf -f t.txt -o m.gguf").exit_code, 2);
  EXPECT_EQ(run("imatrix -m m.gguf -f t.txt -o t.txt").exit_code, 2);
  EXPECT_EQ(run("imatrix -m m.gguf -f t.txt -c 4096").exit_code, 2);
  EXPECT_EQ(run("imatrix -m m.gguf -f t.txt --in-file m.gguf").exit_code, 3);
}

}  // namespace
}  // namespace tandem::tools
