// The results of `tandem bench` as text: the table of llama-bench in Markdown, or its fields as CSV, JSON or
// JSON lines, each with our own about memory traffic. Rows go out as they come.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "tools/bench/cases.h"
#include "tools/output.h"

namespace tandem::tools {

enum class ReportFormat { none, markdown, csv, json, jsonl };

// What is the same in all rows.
struct BenchMachine {
  std::string cpu;
  int bandwidth_threads = 0;
  double bandwidth = 0;      // bytes per second, measured
  std::string gpus;          // their descriptions; empty without
  double gpu_bandwidth = 0;  // of a copy on the first GPU, read and written, bytes per second
};

struct BenchResult {
  BenchCase test;
  std::string model_type;  // "llama 1.1B Q4_0"
  uint64_t model_bytes = 0;
  int64_t n_params = 0;
  std::string test_time;             // when it began, "2025-01-31T12:00:00Z"
  std::vector<uint64_t> samples_ns;  // one a repetition; never empty
  double bytes_per_token = 0;
  std::string backend = "CPU";  // "CPU", "CUDA", "CPU+CUDA"
  int64_t n_gpu_layers = 0;     // that were on GPUs
  int64_t n_ctx = 0;
  // What was chosen for it, or asked for; test has the micro-batch and the cache types that were.
  int64_t n_cpu_moe = 0;
  bool kv_on_host = false, kv_prefetched = false;
  std::string streaming = "none";
  Prediction predicted;  // zeros: nobody knew how fast the devices are
  // By device, the host first: what the session was planned to take, mapped weights not included, and what it
  // took: of the host, what of the program was resident at its end, of GPUs, by how much less was free then.
  std::vector<size_t> planned_bytes, used_bytes;
  size_t mapped_weights = 0;            // that the host reads, to compute with them or to send them
  size_t weights_read_per_token = 0;    // of all, wherever they are
  double streamed_bytes_per_token = 0;  // weights that crossed the bus

  std::vector<double> samples_ts() const;  // tokens per second
  // Share of the measured bandwidth of the device that does all the work, in percent; 0 when the work is
  // divided.
  double bandwidth_percent(const BenchMachine& machine) const;
};

double mean(std::span<const double> samples);
double standard_deviation(std::span<const double> samples);  // of the sample; 0 for a single one

class BenchReport {
 public:
  virtual ~BenchReport() = default;
  // Each writes and flushes. end() also after a failure: what was written until then is complete.
  virtual void begin() {}
  virtual void row(const BenchResult& result) = 0;
  virtual void end() {}
};

// `cases`: all that will be measured; they decide which columns the table has. out and machine outlive the
// report. nullptr for ReportFormat::none.
std::unique_ptr<BenchReport> make_report(ReportFormat format, Output& out, const BenchMachine& machine,
                                         std::span<const BenchCase> cases);

}  // namespace tandem::tools
