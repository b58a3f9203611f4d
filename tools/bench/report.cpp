#include "tools/bench/report.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "tools/bench/report_svg.h"
#include "tools/build_info.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

constexpr double kKiB = 1024.0, kMiB = 1024.0 * kKiB, kGiB = 1024.0 * kMiB;

std::string bytes_text(double n) {
  if (n < kMiB) return format("{:.2f} KiB", n / kKiB);
  return n < kGiB ? format("{:.2f} MiB", n / kMiB) : format("{:.2f} GiB", n / kGiB);
}

std::string count_text(int64_t n) {
  const auto x = static_cast<double>(n);
  return x < 1e9 ? format("{:.2f} M", x / 1e6) : format("{:.2f} B", x / 1e9);
}

std::string cache_type(DType dtype) {
  std::string name(dtype_name(dtype));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

std::vector<double> as_doubles(std::span<const uint64_t> values) {
  return {values.begin(), values.end()};
}

// ---- Markdown ----

struct Column {
  const char* name;
  int width;
  enum { left, right } side;
  std::function<std::string(const BenchResult&)> text;
};

// Width on a terminal: UTF-8 continuation bytes take no column.
int display_width(const std::string& text) {
  return static_cast<int>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string padded(const std::string& text, const Column& column) {
  const std::string space(static_cast<size_t>(std::max(column.width - display_width(text), 0)), ' ');
  return column.side == Column::left ? text + space : space + text;
}

class MarkdownReport final : public BenchReport {
 public:
  MarkdownReport(Output& out, const BenchMachine& machine, std::span<const BenchCase> cases, size_t columns)
      : out_(out), machine_(machine) {
    add("model", 30, Column::left, [](const BenchResult& r) { return r.model_type; });
    add("size", 10, Column::right,
        [](const BenchResult& r) { return bytes_text(static_cast<double>(r.model_bytes)); });
    add("params", 10, Column::right, [](const BenchResult& r) { return count_text(r.n_params); });
    add("backend", 10, Column::left, [](const BenchResult& r) { return r.backend; });
    size_t n_of_model = columns_.size();
    add_number("threads", &BenchCase::n_threads);
    one_thread_count_ = std::all_of(cases.begin(), cases.end(), [&](const BenchCase& c) {
      return c.n_threads == cases.front().n_threads;
    });
    if (one_thread_count_) ++n_of_model;
    add_parameters(cases);
    add("test", 15, Column::right, [](const BenchResult& r) { return test_name(r.test); });
    add("t/s", 20, Column::right, [](const BenchResult& r) {
      const std::vector<double> samples = r.samples_ts();
      return format("{:.2f} ± {:.2f}", mean(samples), standard_deviation(samples));
    });
    add("read/token", 10, Column::right, [](const BenchResult& r) { return bytes_text(r.bytes_per_token); });
    add("bandwidth", 9, Column::right, [this](const BenchResult& r) {
      const double percent = r.bandwidth_percent(machine_);
      return percent > 0 ? format("{:.1f} %", percent) : std::string("-");
    });
    names_model_above_ = width() > columns;
    if (names_model_above_) columns_.erase(columns_.begin(), columns_.begin() + static_cast<ptrdiff_t>(n_of_model));
  }

  void begin() override {
    if (!names_model_above_) write_head();
  }

  void row(const BenchResult& result) override {
    if (names_model_above_) name_model(result);
    line([&result](const Column& c) { return padded(c.text(result), c); });
    out_.flush();
    if (!result.generic_kernels.empty()) notes_.insert(result.generic_kernels);
  }

  void end() override {
    out_.write(format("\nbuild: {} ({})\nmemory: {:.1f} GB/s read by {} threads\n", build_commit(),
                      build_number(), machine_.bandwidth / 1e9, machine_.bandwidth_threads));
    for (const std::string& note : notes_) out_.write(note + "\n");
    out_.flush();
  }

 private:
  void write_head() {
    line([](const Column& c) { return padded(c.name, c); });
    line([](const Column& c) {
      std::string rule(static_cast<size_t>(c.width), '-');
      if (c.side == Column::right) rule.back() = ':';
      return rule;
    });
    out_.flush();
  }

  // Begins a table of its own for every model.
  void name_model(const BenchResult& r) {
    std::string text = format("{}: {}, {} parameters, {}", r.model_type, bytes_text(static_cast<double>(r.model_bytes)),
                              count_text(r.n_params), r.backend);
    if (one_thread_count_) text += ", " + counted(r.test.n_threads, "thread");
    if (text == model_above_) return;
    out_.write((model_above_.empty() ? "" : "\n") + text + "\n\n");
    model_above_ = text;
    write_head();
  }

  size_t width() const {
    size_t n = 1;
    for (const Column& column : columns_) n += static_cast<size_t>(column.width) + 3;
    return n;
  }

  template <class Side>
  void add(const char* name, int width, Side side, std::function<std::string(const BenchResult&)> text) {
    columns_.push_back(
        {name, std::max(width, static_cast<int>(std::string(name).size())), side, std::move(text)});
  }

  void add_number(const char* name, int32_t BenchCase::*member) {
    add(name, 7, Column::right, [member](const BenchResult& r) { return std::to_string(r.test.*member); });
  }

  // A parameter gets a column if a case differs from its default.
  void add_parameters(std::span<const BenchCase> cases) {
    const auto differs = [cases](auto member) {
      const BenchCase usual;
      return std::any_of(cases.begin(), cases.end(),
                         [&](const BenchCase& c) { return c.*member != usual.*member; });
    };
    // On a machine with a GPU, always show the number of its layers, even if it was chosen automatically.
    if (!machine_.gpus.empty() || differs(&BenchCase::n_gpu_layers)) {
      add("ngl", 4, Column::right, [](const BenchResult& r) { return std::to_string(r.n_gpu_layers); });
    }
    if (differs(&BenchCase::no_kv_offload)) {
      add("nkvo", 4, Column::right,
          [](const BenchResult& r) { return std::string(r.test.no_kv_offload ? "1" : "0"); });
    }
    if (differs(&BenchCase::isa)) {
      add("isa", 11, Column::left,
          [](const BenchResult& r) { return r.test.isa.empty() ? "best" : r.test.isa; });
    }
    if (differs(&BenchCase::n_batch)) add_number("n_batch", &BenchCase::n_batch);
    if (differs(&BenchCase::n_ubatch)) add_number("n_ubatch", &BenchCase::n_ubatch);
    const auto add_type = [this](const char* name, DType BenchCase::*member) {
      add(name, 6, Column::right, [member](const BenchResult& r) { return cache_type(r.test.*member); });
    };
    if (differs(&BenchCase::type_k)) add_type("type_k", &BenchCase::type_k);
    if (differs(&BenchCase::type_v)) add_type("type_v", &BenchCase::type_v);
    if (differs(&BenchCase::mmap)) {
      add("mmap", 4, Column::right,
          [](const BenchResult& r) { return std::string(r.test.mmap ? "1" : "0"); });
    }
  }

  template <class Cell>
  void line(Cell&& cell) {
    out_.write("|");
    for (const Column& column : columns_) out_.write(" " + cell(column) + " |");
    out_.write("\n");
  }

  Output& out_;
  const BenchMachine& machine_;
  std::vector<Column> columns_;
  bool one_thread_count_ = false;   // of all cases
  bool names_model_above_ = false;  // above a table instead of in its rows
  std::string model_above_;         // of the last table
  std::set<std::string> notes_;  // what the rows' models have no kernels for
};

// ---- Fields ----

using Record = nlohmann::ordered_json;

// llama-bench's fields in its order, then our own.
Record record_of(const BenchResult& r, const BenchMachine& machine) {
  const std::vector<double> ns = as_doubles(r.samples_ns), ts = r.samples_ts();
  Record o;
  o["build_commit"] = build_commit();
  o["build_number"] = build_number();
  o["cpu_info"] = machine.cpu;
  o["gpu_info"] = machine.gpus;
  o["backends"] = r.backend;
  o["model_filename"] = r.test.model;
  o["model_type"] = r.model_type;
  o["model_size"] = r.model_bytes;
  o["model_n_params"] = r.n_params;
  o["n_batch"] = r.test.n_batch;
  o["n_ubatch"] = r.test.n_ubatch;
  o["n_threads"] = r.test.n_threads;
  o["n_gpu_layers"] = r.n_gpu_layers;
  o["no_kv_offload"] = r.test.no_kv_offload;
  o["type_k"] = cache_type(r.test.type_k);
  o["type_v"] = cache_type(r.test.type_v);
  o["flash_attn"] = true;  // the only implementation
  o["use_mmap"] = r.test.mmap;
  o["n_prompt"] = r.test.n_prompt;
  o["n_gen"] = r.test.n_gen;
  o["n_depth"] = r.test.n_depth;
  o["test_time"] = r.test_time;
  o["avg_ns"] = std::llround(mean(ns));
  o["stddev_ns"] = std::llround(standard_deviation(ns));
  o["avg_ts"] = mean(ts);
  o["stddev_ts"] = standard_deviation(ts);
  o["bytes_per_token"] = std::llround(r.bytes_per_token);
  o["bandwidth_bytes_per_s"] = std::llround(machine.bandwidth);
  o["bandwidth_percent"] = r.bandwidth_percent(machine);
  o["isa"] = r.test.isa;
  o["n_ctx"] = r.n_ctx;
  o["n_cpu_moe"] = r.n_cpu_moe;
  o["kv_on_host"] = r.kv_on_host;
  o["kv_prefetched"] = r.kv_prefetched;
  o["streaming"] = r.streaming;
  o["predicted_prefill_ts"] = r.predicted.prefill_tokens_per_s;
  o["predicted_decode_ts"] = r.predicted.decode_tokens_per_s;
  o["planned_bytes"] = r.planned_bytes;
  o["used_bytes"] = r.used_bytes;
  o["mapped_weights"] = r.mapped_weights;
  o["weights_read_per_token"] = r.weights_read_per_token;
  o["streamed_bytes_per_token"] = r.streamed_bytes_per_token;
  o["samples_ns"] = r.samples_ns;
  o["samples_ts"] = ts;
  return o;
}

// Adds the fields that only some rows have; CSV has no place for these.
Record whole_record_of(const BenchResult& r, const BenchMachine& machine) {
  Record o = record_of(r, machine);
  if (!r.generic_kernels.empty()) o["generic_kernels"] = r.generic_kernels;
  return o;
}

// Replaces invalid UTF-8, which a file name may contain.
std::string dump(const Record& record, int indent) {
  return record.dump(indent, ' ', false, Record::error_handler_t::replace);
}

class JsonReport final : public BenchReport {
 public:
  JsonReport(Output& out, const BenchMachine& machine) : out_(out), machine_(machine) {}
  void begin() override { write("["); }
  void row(const BenchResult& result) override {
    std::string text = "\n" + dump(whole_record_of(result, machine_), 2);
    for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 3) text.insert(at + 1, "  ");
    write((n_rows_++ == 0 ? "" : ",") + text);
  }
  void end() override { write("\n]\n"); }

 private:
  void write(const std::string& text) {
    out_.write(text);
    out_.flush();
  }
  Output& out_;
  const BenchMachine& machine_;
  int n_rows_ = 0;
};

class JsonLinesReport final : public BenchReport {
 public:
  JsonLinesReport(Output& out, const BenchMachine& machine) : out_(out), machine_(machine) {}
  void row(const BenchResult& result) override {
    out_.write(dump(whole_record_of(result, machine_), -1) + "\n");
    out_.flush();
  }

 private:
  Output& out_;
  const BenchMachine& machine_;
};

// One line per row, without the lists of samples.
class CsvReport final : public BenchReport {
 public:
  CsvReport(Output& out, const BenchMachine& machine) : out_(out), machine_(machine) {}
  void row(const BenchResult& result) override {
    const Record record = record_of(result, machine_);
    if (n_rows_++ == 0) write_line(record, [](const auto& field) { return std::string(field.key()); });
    write_line(record, [](const auto& field) {
      const auto& value = field.value();
      return quoted(value.is_string() ? value.template get<std::string>() : value.dump());
    });
    out_.flush();
  }

 private:
  static std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
    return out + "\"";
  }

  template <class Cell>
  void write_line(const Record& record, Cell&& cell) {
    std::string line;
    for (const auto& field : record.items()) {
      if (!field.value().is_array()) line += (line.empty() ? "" : ",") + cell(field);
    }
    out_.write(line + "\n");
  }

  Output& out_;
  const BenchMachine& machine_;
  int n_rows_ = 0;
};

}  // namespace

std::vector<double> BenchResult::samples_ts() const {
  std::vector<double> ts;
  for (const uint64_t ns : samples_ns)
    ts.push_back(1e9 * static_cast<double>(test.n_tokens()) / static_cast<double>(ns));
  return ts;
}

double BenchResult::bandwidth_percent(const BenchMachine& machine) const {
  const double bandwidth = backend == "CPU"                 ? machine.bandwidth
                           : backend == machine.gpu_backend ? machine.gpu_bandwidth
                                                            : 0.0;
  return bandwidth > 0 ? 100.0 * bytes_per_token * mean(samples_ts()) / bandwidth : 0.0;
}

double mean(std::span<const double> samples) {
  double sum = 0;
  for (const double x : samples) sum += x;
  return sum / static_cast<double>(samples.size());
}

double standard_deviation(std::span<const double> samples) {
  if (samples.size() < 2) return 0;
  const double center = mean(samples);
  double sum = 0;
  for (const double x : samples) sum += (x - center) * (x - center);
  return std::sqrt(sum / static_cast<double>(samples.size() - 1));
}

std::unique_ptr<BenchReport> make_report(ReportFormat format, Output& out, const BenchMachine& machine,
                                         std::span<const BenchCase> cases, size_t columns) {
  switch (format) {
    case ReportFormat::none: return nullptr;
    case ReportFormat::markdown: return std::make_unique<MarkdownReport>(out, machine, cases, columns);
    case ReportFormat::csv: return std::make_unique<CsvReport>(out, machine);
    case ReportFormat::json: return std::make_unique<JsonReport>(out, machine);
    case ReportFormat::jsonl: return std::make_unique<JsonLinesReport>(out, machine);
    case ReportFormat::svg: return make_svg_report(out, machine);
  }
  return nullptr;
}

}  // namespace tandem::tools
