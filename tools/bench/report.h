// Reports of `tandem bench`: llama-bench's table in Markdown, or its fields as CSV, JSON or JSON lines, with
// additional fields about memory traffic. Each row is written as soon as it is measured; a picture (report_svg.h)
// when the report ends.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan/cost.h"
#include "tools/bench/cases.h"
#include "tools/output.h"

namespace tandem::tools {

enum class ReportFormat { none, markdown, csv, json, jsonl, svg };

// Properties of the machine, the same in all rows.
struct BenchMachine {
  std::string cpu;
  int bandwidth_threads = 0;
  double bandwidth = 0;      // bytes per second, measured
  std::string gpus;          // descriptions of the GPUs; empty if there are none
  std::string gpu_backend;   // of the first GPU
  double gpu_bandwidth = 0;  // bytes read and written per second by a copy on the first GPU
};

struct BenchResult {
  BenchCase test;
  std::string model_type;  // "llama 1.1B Q4_0"
  uint64_t model_bytes = 0;
  int64_t n_params = 0;
  std::string test_time;             // start time, "2025-01-31T12:00:00Z"
  std::vector<uint64_t> samples_ns;  // one per repetition; never empty
  double bytes_per_token = 0;
  std::string backend = "CPU";  // of all devices in use, joined by "+"
  int64_t n_gpu_layers = 0;     // layers on GPUs
  int64_t n_ctx = 0;
  // The placement used, chosen or given; `test` has the micro-batch and the cache types used.
  int64_t n_cpu_moe = 0;
  bool kv_on_host = false, kv_prefetched = false;
  std::string streaming = "none";
  std::string generic_kernels;  // dtypes without kernels of their own, as a line of text; usually empty
  Prediction predicted;         // zeros if the speeds of the devices are unknown
  // By device, the host first. planned: predicted for the session, without mapped weights. used: on the host
  // the resident memory at the end, on GPUs the decrease in free memory.
  std::vector<size_t> planned_bytes, used_bytes;
  size_t mapped_weights = 0;            // bytes that the host reads, to compute or to send
  size_t weights_read_per_token = 0;    // bytes on all devices
  double streamed_bytes_per_token = 0;  // weights copied over the bus

  std::vector<double> samples_ts() const;  // tokens per second
  // Percentage of the measured bandwidth of the device that does all the work; 0 if several share it.
  double bandwidth_percent(const BenchMachine& machine) const;
};

double mean(std::span<const double> samples);
double standard_deviation(std::span<const double> samples);  // sample deviation; 0 for a single value

class BenchReport {
 public:
  virtual ~BenchReport() = default;
  // Each call writes and flushes. Call end() also after a failure, to complete the report.
  virtual void begin() {}
  virtual void row(const BenchResult& result) = 0;
  virtual void end() {}
};

// `cases`: all cases to measure; they determine the columns of the table. `out` and `machine` must outlive
// the report. A table that is wider than `columns` says in a line above it what is true of a model's rows.
// Returns nullptr for ReportFormat::none.
std::unique_ptr<BenchReport> make_report(ReportFormat format, Output& out, const BenchMachine& machine,
                                         std::span<const BenchCase> cases, size_t columns = SIZE_MAX);

}  // namespace tandem::tools
