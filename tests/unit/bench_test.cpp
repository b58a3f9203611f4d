// tandem bench: lists of parameters and their combinations, the arithmetic of the columns, reports, and real
// measurements.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/sanitized.h"
#include "plan/bandwidth.h"
#include "support/gguf_bytes.h"
#include "support/text_files.h"
#include "support/tiny_model.h"
#include "tools/bench/measure.h"
#include "tools/bench/report.h"

namespace tandem::tools {
namespace {

using test::lines_of;
using testing::ElementsAre;
using testing::HasSubstr;

// ---- Lists ----

TEST(BenchLists, RangesAreAddedUpOrMultiplied) {
  const auto parse = [](const char* text) { return parse_ranges("-p", text, 0); };
  EXPECT_THAT(parse("512"), ElementsAre(512));
  EXPECT_THAT(parse("1,2,7"), ElementsAre(1, 2, 7));
  EXPECT_THAT(parse("1-4"), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(parse("0-10+4"), ElementsAre(0, 4, 8));
  EXPECT_THAT(parse("1-9*2,5"), ElementsAre(1, 2, 4, 8, 5));
  EXPECT_THAT(parse("2147483646-2147483647"), ElementsAre(2147483646, 2147483647));
  EXPECT_THAT(parse("1000000-2147483647*1000"), ElementsAre(1000000, 1000000000));
}

TEST(BenchLists, RejectsInvalidRanges) {
  for (const char* text : {"", "x", "1,", ",1", "4-1", "1-5*1", "0-5*2", "1-5+0", "1-", "-1", "1-2+", "1-2-3",
                           "1+2", "1-100000", "99999999999", "0"}) {
    try {
      parse_ranges("--n-prompt", text, 1);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage) << text;
      EXPECT_THAT(e.what(), HasSubstr("--n-prompt")) << text;
    }
  }
}

BenchLists small_lists() {
  BenchLists lists;
  lists.model = {"m.gguf"};
  lists.n_threads = {2};
  return lists;
}

TEST(BenchLists, MultiplyOut) {
  BenchLists lists = small_lists();
  lists.model = {"a", "b"};
  lists.n_threads = {1, 2};
  lists.isa = {"", "scalar"};
  lists.n_depth = {0, 64};
  lists.n_prompt = {512, 0, 16};
  lists.n_gen = {8};
  lists.prompt_gen = {{32, 4}, {0, 0}};
  const auto cases = make_cases(lists);
  ASSERT_EQ(cases.size(), 2u * 2 * 2 * 2 * (2 + 1 + 1));
  std::vector<std::string> names;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(cases[i].model, "a");
    EXPECT_EQ(cases[i].n_threads, 1);
    EXPECT_EQ(cases[i].isa, "");
    names.push_back(test_name(cases[i]));
  }
  EXPECT_THAT(names, ElementsAre("pp512", "pp16", "tg8", "pp32+tg4", "pp512 @ d64", "pp16 @ d64", "tg8 @ d64",
                                 "pp32+tg4 @ d64"));
  EXPECT_EQ(cases[8].isa, "scalar");
  EXPECT_EQ(cases[8].n_threads, 1);
  EXPECT_EQ(cases[16].n_threads, 2);
  EXPECT_EQ(cases[32].model, "b");
}

TEST(BenchLists, RejectsNoTestAndTooMany) {
  BenchLists lists = small_lists();
  lists.n_prompt = lists.n_gen = {0};
  EXPECT_THROW(make_cases(lists), Error);
  lists.n_prompt = lists.n_depth = parse_ranges("-p", "1-1000", 0);
  EXPECT_THROW(make_cases(lists), Error);
}

// ---- Arithmetic ----

TEST(BenchBytes, EachStepReadsTheWeightsAndTheCacheSoFar) {
  BenchCase c;
  c.n_gen = 2;
  c.n_depth = 10;
  EXPECT_DOUBLE_EQ(bytes_read_per_token(c, 1000, 10), (1000 + 110 + 1000 + 120) / 2.0);
  c.n_gen = 0;
  c.n_depth = 0;
  c.n_prompt = 5;
  c.n_ubatch = 2;  // steps of 2, 2 and 1
  EXPECT_DOUBLE_EQ(bytes_read_per_token(c, 1000, 10), (3 * 1000 + 20 + 40 + 50) / 5.0);
  c.n_ubatch = 512;
  c.n_batch = 3;  // also limits the step
  c.n_gen = 1;
  EXPECT_DOUBLE_EQ(bytes_read_per_token(c, 1000, 10), (3 * 1000 + 30 + 50 + 60) / 6.0);
}

TEST(BenchStatistics, MeanAndSampleDeviation) {
  const std::vector<double> samples{2, 4, 4, 4, 5, 5, 7, 9};
  EXPECT_DOUBLE_EQ(mean(samples), 5);
  EXPECT_DOUBLE_EQ(standard_deviation(samples), std::sqrt(32.0 / 7));
  EXPECT_EQ(standard_deviation(std::vector<double>{3}), 0);
}

BenchResult some_result() {
  BenchResult r;
  r.test.model = "dir/a \"b\", c.gguf";
  r.test.n_prompt = 512;
  r.test.n_threads = 2;
  r.model_type = "llama 1.1B Q4_0";
  r.model_bytes = 636u << 20;
  r.n_params = 1100000000;
  r.test_time = "2025-01-31T12:00:00Z";
  r.samples_ns = {1000000000, 2000000000};
  r.bytes_per_token = 1e6;
  r.streaming = "prefill";
  r.planned_bytes = {1, 2000};
  r.used_bytes = {0, 3000};
  r.streamed_bytes_per_token = 2.5e6;
  return r;
}

const BenchMachine kMachine{"Some CPU", 2, 1e10};

TEST(BenchStatistics, PercentOfBandwidthIsBytesTimesSpeed) {
  EXPECT_THAT(some_result().samples_ts(), ElementsAre(512, 256));
  EXPECT_DOUBLE_EQ(some_result().bandwidth_percent(kMachine), 100 * 384 * 1e6 / 1e10);
  BenchMachine machine = kMachine;
  machine.gpu_backend = "SIM";
  machine.gpu_bandwidth = 1e11;
  BenchResult result = some_result();
  result.backend = "SIM";
  EXPECT_DOUBLE_EQ(result.bandwidth_percent(machine), 100 * 384 * 1e6 / 1e11);
  result.backend = "CPU+SIM";
  EXPECT_EQ(result.bandwidth_percent(machine), 0);
}

// ---- Reports ----

// The text of a report of these results.
std::string reported(ReportFormat format, const std::vector<BenchResult>& results, size_t columns = SIZE_MAX) {
  FILE* file = std::tmpfile();
  std::vector<BenchCase> cases;
  for (const BenchResult& r : results) cases.push_back(r.test);
  {
    Output out(fileno(file));
    const auto report = make_report(format, out, kMachine, cases, columns);
    report->begin();
    for (const BenchResult& r : results) report->row(r);
    report->end();
  }
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

// The cells of a table row, without padding.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  std::istringstream in(line.substr(1));
  for (std::string cell; std::getline(in, cell, '|');) {
    const size_t first = cell.find_first_not_of(' ');
    cells.push_back(first == std::string::npos ? ""
                                               : cell.substr(first, cell.find_last_not_of(' ') - first + 1));
  }
  return cells;
}

TEST(BenchReport, TableShowsParametersThatAreNotDefault) {
  auto lines = lines_of(reported(ReportFormat::markdown, {some_result()}));
  ASSERT_GE(lines.size(), 3u);
  EXPECT_THAT(cells_of(lines[0]), ElementsAre("model", "size", "params", "backend", "threads", "test", "t/s",
                                              "read/token", "bandwidth"));
  EXPECT_THAT(cells_of(lines[2]), ElementsAre("llama 1.1B Q4_0", "636.00 MiB", "1.10 B", "CPU", "2", "pp512",
                                              "384.00 ± 181.02", "976.56 KiB", "3.8 %"));
  EXPECT_EQ(lines[0].size() + 1, lines[2].size());  // the plus-minus sign is two bytes

  BenchResult other = some_result();
  other.test.n_ubatch = 64;
  other.test.isa = "avx2";
  other.test.type_v = DType::Q8_0;
  other.test.mmap = false;
  lines = lines_of(reported(ReportFormat::markdown, {some_result(), other}));
  ASSERT_GE(lines.size(), 4u);
  EXPECT_THAT(cells_of(lines[0]),
              ElementsAre("model", "size", "params", "backend", "threads", "isa", "n_ubatch", "type_v",
                          "mmap", "test", "t/s", "read/token", "bandwidth"));
  const auto first = cells_of(lines[2]), second = cells_of(lines[3]);
  EXPECT_THAT(std::vector(first.begin() + 5, first.begin() + 9), ElementsAre("best", "512", "f16", "1"));
  EXPECT_THAT(std::vector(second.begin() + 5, second.begin() + 9), ElementsAre("avx2", "64", "q8_0", "0"));
}

TEST(BenchReport, TableThatIsTooWideNamesTheModelAboveIt) {
  BenchResult decode = some_result(), other = some_result();
  decode.test.n_prompt = 0;
  decode.test.n_gen = 64;
  other.model_type = "another";
  EXPECT_EQ(lines_of(reported(ReportFormat::markdown, {decode}, 200))[0].find("model"), 2u) << "there is room";

  const auto lines = lines_of(reported(ReportFormat::markdown, {some_result(), decode, other}, 80));
  ASSERT_GE(lines.size(), 11u);
  EXPECT_EQ(lines[0], "llama 1.1B Q4_0: 636.00 MiB, 1.10 B parameters, CPU, 2 threads");
  EXPECT_EQ(lines[1], "");
  EXPECT_THAT(cells_of(lines[2]), ElementsAre("test", "t/s", "read/token", "bandwidth"));
  EXPECT_THAT(cells_of(lines[4]), ElementsAre("pp512", "384.00 ± 181.02", "976.56 KiB", "3.8 %"));
  EXPECT_EQ(cells_of(lines[5])[0], "tg64");
  EXPECT_THAT(lines[7], testing::StartsWith("another: "));
  EXPECT_THAT(cells_of(lines[9]), ElementsAre("test", "t/s", "read/token", "bandwidth"));
  for (const std::string& line : lines) EXPECT_LE(line.size(), 81u) << "a plus-minus sign is two bytes";

  decode.test.n_threads = 1;
  EXPECT_EQ(cells_of(lines_of(reported(ReportFormat::markdown, {some_result(), decode}, 80))[2])[0], "threads");
}

TEST(BenchReport, SaysOnceWhatHasNoKernels) {
  BenchResult generic = some_result();
  generic.generic_kernels = "generic kernels for TQ2_0 on CPU (float rows; slower)";
  for (const ReportFormat format : {ReportFormat::markdown, ReportFormat::json, ReportFormat::jsonl}) {
    EXPECT_THAT(reported(format, {some_result()}), testing::Not(HasSubstr("generic")));
    EXPECT_THAT(reported(format, {some_result(), generic}), HasSubstr(generic.generic_kernels));
  }
  const auto lines = lines_of(reported(ReportFormat::markdown, {generic, generic}));
  EXPECT_EQ(lines.back(), generic.generic_kernels);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), generic.generic_kernels), 1);
  EXPECT_EQ(lines_of(reported(ReportFormat::csv, {some_result(), generic})).size(), 3u);
}

void expect_fields(const nlohmann::json& record) {
  EXPECT_EQ(record.at("model_filename"), some_result().test.model);
  EXPECT_EQ(record.at("n_prompt"), 512);
  EXPECT_EQ(record.at("type_k"), "f16");
  EXPECT_EQ(record.at("avg_ns"), 1500000000);
  EXPECT_EQ(record.at("stddev_ns"), 707106781);
  EXPECT_EQ(record.at("avg_ts"), 384.0);
  EXPECT_EQ(record.at("bytes_per_token"), 1000000);
  EXPECT_EQ(record.at("bandwidth_bytes_per_s"), 10000000000);
  EXPECT_NEAR(record.at("bandwidth_percent").get<double>(), 3.84, 1e-12);
  EXPECT_EQ(record.at("samples_ns"), nlohmann::json({1000000000, 2000000000}));
  EXPECT_EQ(record.at("streaming"), "prefill");
  EXPECT_EQ(record.at("planned_bytes"), nlohmann::json({1, 2000}));
  EXPECT_EQ(record.at("used_bytes"), nlohmann::json({0, 3000}));
  EXPECT_EQ(record.at("streamed_bytes_per_token"), 2.5e6);
}

TEST(BenchReport, Json) {
  const auto records = nlohmann::json::parse(reported(ReportFormat::json, {some_result(), some_result()}));
  ASSERT_EQ(records.size(), 2u);
  for (const auto& record : records) expect_fields(record);
  EXPECT_EQ(nlohmann::json::parse(reported(ReportFormat::json, {})).size(), 0u);
}

TEST(BenchReport, JsonLines) {
  const auto lines = lines_of(reported(ReportFormat::jsonl, {some_result(), some_result()}));
  ASSERT_EQ(lines.size(), 2u);
  for (const std::string& line : lines) expect_fields(nlohmann::json::parse(line));
}

TEST(BenchReport, CsvHasAHeaderAndQuotedValues) {
  const auto lines = lines_of(reported(ReportFormat::csv, {some_result(), some_result()}));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0],
              testing::StartsWith("build_commit,build_number,cpu_info,gpu_info,backends,model_filename,"));
  EXPECT_THAT(lines[1],
              HasSubstr(R"("Some CPU","","CPU","dir/a ""b"", c.gguf","llama 1.1B Q4_0","666894336",)"));
  EXPECT_EQ(lines[1], lines[2]);
}

// ---- Measurements ----

TEST(Bandwidth, IsPlausible) {
  ThreadPool pool(2);
  const double bandwidth = measure_read_bandwidth(pool, 32u << 20);
  EXPECT_GT(bandwidth, 1e8);   // less would mean a wrong unit
  EXPECT_LT(bandwidth, 1e13);  // more would mean that nothing was read
}

TEST(Bandwidth, StopsWhenInterrupted) {
  install_interrupt_handler();
  raise(SIGINT);
  ThreadPool pool(2);
  EXPECT_THROW(measure_read_bandwidth(pool, 32u << 20), Error);
  clear_interrupt();
}

TEST(Bandwidth, UsesLittleOfTheFreeMemory) {
  if (kSanitized) GTEST_SKIP() << "with a sanitizer the buffer is always small";
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 32u << 20), 512u << 20);
  EXPECT_EQ(bandwidth_buffer_bytes(100u << 20), 25u << 20);
  EXPECT_EQ(bandwidth_buffer_bytes(0), 16u << 20);
}

// Some servers have caches of half a GiB.
TEST(Bandwidth, IsMeasuredBeyondTheCaches) {
  if (kSanitized) GTEST_SKIP() << "with a sanitizer the buffer is always small";
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 480u << 20, 64), 1920u << 20);
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, size_t{1} << 30, 64), size_t{2} << 30);
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 0), 512u << 20);
  EXPECT_GE(bandwidth_buffer_bytes(size_t{1} << 40), std::min(size_t{512} << 20, 4 * last_cache_bytes()) >> 20 << 20);
}

// Few cores have little of such a cache.
TEST(Bandwidth, IsMeasuredQuicklyByFewCores) {
  if (kSanitized) GTEST_SKIP() << "with a sanitizer the buffer is always small";
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 480u << 20, 2), size_t{1} << 30);
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 96u << 20, 2), 512u << 20);
  EXPECT_EQ(bandwidth_buffer_bytes(size_t{1} << 40, 480u << 20, 1), 512u << 20);
}

class BenchOfAModel : public testing::Test {
 protected:
  void SetUp() override {
    case_.model = directory_.path("tiny.gguf");
    test::tiny_llama().write(case_.model);
    case_.n_threads = 1;
  }
  test::TempDir directory_;
  BenchCase case_;
};

TEST_F(BenchOfAModel, MeasuresEveryRepetition) {
  case_.n_prompt = 20;
  case_.n_gen = 3;
  case_.n_depth = 40;
  case_.n_ubatch = 16;
  std::vector<std::string> stages;
  BenchRunner runner({.repetitions = 3, .warmup = true});
  const BenchResult r = runner.run(case_, [&](const std::string& name) { stages.push_back(name); });
  EXPECT_THAT(stages, ElementsAre("loading", "depth", "warm-up", "1/3", "2/3", "3/3"));
  EXPECT_EQ(r.samples_ns.size(), 3u);
  for (const double ts : r.samples_ts()) EXPECT_GT(ts, 0);
  // Two tables of 300 rows, the last norm, and 2 layers with two norms, attention and feed-forward matrices.
  const int64_t layer = 2 * 64 + 64 * (64 + 32 + 32 + 64) + 3 * 64 * 96;
  const int64_t n_params = 2 * 300 * 64 + 64 + 2 * layer;
  EXPECT_EQ(r.n_params, n_params);
  EXPECT_EQ(r.model_bytes, 4u * n_params);
  // 2 layers of 2 heads with 16 dimensions, keys and values as F16: 256 bytes per token. A step reads all weights,
  // but only one of the 300 rows of the embedding table.
  const double weights = 4.0 * static_cast<double>(n_params - 299 * 64);
  const double cache = 256.0 * (56 + 60 + 61 + 62 + 63);
  EXPECT_DOUBLE_EQ(r.bytes_per_token, (5 * weights + cache) / 23);

  EXPECT_EQ(r.test.n_ubatch, 16);
  EXPECT_EQ(r.n_ctx, 63);
  EXPECT_EQ(r.mapped_weights, 4u * n_params);
  EXPECT_EQ(r.weights_read_per_token, weights);
  EXPECT_EQ(r.planned_bytes.size(), 1u);
  ASSERT_EQ(r.used_bytes.size(), 1u);
  EXPECT_GT(r.used_bytes[0], r.planned_bytes[0]);

  // The same runner with another shape keeps the model and needs no warm-up.
  case_.n_prompt = 0;
  case_.n_depth = 0;
  EXPECT_EQ(runner.run(case_, [](const std::string&) {}).test.n_gen, 3);
}

TEST_F(BenchOfAModel, TheContextMayBeLargerThanTheTest) {
  case_.n_gen = 1;
  case_.n_ubatch = 512;
  BenchRunner runner({.repetitions = 1, .warmup = false, .n_ctx = 100});
  const BenchResult r = runner.run(case_, [](const std::string&) {});
  EXPECT_EQ(r.n_ctx, 100);
  EXPECT_EQ(r.test.n_ubatch, 512);
}

TEST_F(BenchOfAModel, StopsWhenInterrupted) {
  case_.n_gen = 1000;
  install_interrupt_handler();
  raise(SIGINT);
  BenchRunner runner({.repetitions = 1, .warmup = false});
  try {
    runner.run(case_, [](const std::string&) {});
    ADD_FAILURE() << "ran on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::interrupted);
  }
  clear_interrupt();
}

}  // namespace
}  // namespace tandem::tools
