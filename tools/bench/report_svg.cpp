#include "tools/bench/report_svg.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "tools/svg/charts.h"

namespace tandem::tools {
namespace {

// A parameter of a test: what it is called, and its value in a test, as a number if it is one.
struct Parameter {
  const char* name;
  const char* axis;
  std::optional<int64_t> (*number)(const BenchResult&);
  std::string (*text)(const BenchResult&);
};

std::string lower_case(std::string_view text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return lower;
}

template <auto Member>
std::optional<int64_t> number_of(const BenchResult& r) {
  return r.test.*Member;
}
template <auto Member>
std::string text_of(const BenchResult& r) {
  return std::to_string(r.test.*Member);
}
template <auto Member>
std::string type_of(const BenchResult& r) {
  return lower_case(dtype_name(r.test.*Member));
}
std::optional<int64_t> no_number(const BenchResult&) {
  return std::nullopt;
}

// The first that varies is the x axis; the others that vary distinguish the series.
const Parameter kParameters[] = {
    {"depth", "tokens in the cache before the test", number_of<&BenchCase::n_depth>,
     text_of<&BenchCase::n_depth>},
    {"threads", "threads", number_of<&BenchCase::n_threads>, text_of<&BenchCase::n_threads>},
    {"layers on GPUs", "layers on GPUs",
     [](const BenchResult& r) -> std::optional<int64_t> { return r.n_gpu_layers; },
     [](const BenchResult& r) { return std::to_string(r.n_gpu_layers); }},
    {"micro-batch", "micro-batch (tokens)", number_of<&BenchCase::n_ubatch>, text_of<&BenchCase::n_ubatch>},
    {"batch", "batch (tokens)", number_of<&BenchCase::n_batch>, text_of<&BenchCase::n_batch>},
    {"instruction set", "instruction set", no_number,
     [](const BenchResult& r) { return r.test.isa.empty() ? "best" : r.test.isa; }},
    {"model", "model", no_number, [](const BenchResult& r) { return r.model_type; }},
    {"K cache", "type of cached keys", no_number, type_of<&BenchCase::type_k>},
    {"V cache", "type of cached values", no_number, type_of<&BenchCase::type_v>},
    {"KV in host memory", "KV cache in host memory", no_number,
     [](const BenchResult& r) { return std::string(r.test.no_kv_offload ? "yes" : "no"); }},
    {"mmap", "file mapped", no_number,
     [](const BenchResult& r) { return std::string(r.test.mmap ? "yes" : "no"); }},
};

// What a test measures; each kind is a panel.
enum class Kind { prompt, generation, both };

Kind kind_of(const BenchCase& c) {
  return c.n_gen == 0 ? Kind::prompt : c.n_prompt == 0 ? Kind::generation : Kind::both;
}

const char* title_of(Kind kind) {
  switch (kind) {
    case Kind::prompt: return "Prompt";
    case Kind::generation: return "Generation";
    case Kind::both: return "Prompt and generation";
  }
  return "";
}

// "pp512", without the depth.
std::string size_name(BenchCase c) {
  c.n_depth = 0;
  return test_name(c);
}

bool varies(const std::vector<BenchResult>& results, std::string (*text)(const BenchResult&)) {
  return std::any_of(results.begin(), results.end(),
                     [&](const BenchResult& r) { return text(r) != text(results.front()); });
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

class SvgReport final : public BenchReport {
 public:
  SvgReport(Output& out, const BenchMachine& machine) : out_(out), machine_(machine) {}
  void row(const BenchResult& result) override { results_.push_back(result); }
  void end() override {
    if (!results_.empty()) out_.write(draw());
    out_.flush();
  }

 private:
  std::string draw() const {
    std::vector<Parameter> varying;
    for (const Parameter& p : kParameters) {
      if (varies(results_, p.text)) varying.push_back(p);
    }
    const Parameter model = kParameters[5];
    const Parameter axis = varying.empty() ? model : varying.front();
    if (!varying.empty()) varying.erase(varying.begin());
    std::vector<ChartPanel> panels;
    for (const Kind kind : {Kind::prompt, Kind::generation, Kind::both}) {
      std::vector<BenchResult> of_kind;
      for (const BenchResult& r : results_) {
        if (kind_of(r.test) == kind) of_kind.push_back(r);
      }
      if (!of_kind.empty()) panels.push_back(panel(kind, of_kind, axis, varying));
    }
    std::vector<std::string> machine{machine_.cpu};
    if (!machine_.gpus.empty()) machine.push_back(machine_.gpus);
    const bool one_model = !varies(results_, model.text);
    return draw_panels(one_model ? results_.front().model_type + ", tokens per second" : "Tokens per second",
                       joined(machine), panels);
  }

  static ChartPanel panel(Kind kind, const std::vector<BenchResult>& results, const Parameter& axis,
                          const std::vector<Parameter>& varying) {
    ChartPanel panel;
    const bool sizes = std::any_of(results.begin(), results.end(), [&](const BenchResult& r) {
      return size_name(r.test) != size_name(results.front().test);
    });
    panel.title =
        format("{} ({})", title_of(kind), sizes ? "several lengths" : size_name(results.front().test));
    panel.x_label = axis.axis;
    panel.y_label = "tokens per second";
    std::vector<std::string> order;  // of series, as measured
    std::map<std::string, ChartSeries> by_name;
    for (const BenchResult& r : results) {
      std::vector<std::string> parts;
      if (sizes) parts.push_back(size_name(r.test));
      for (const Parameter& p : varying) parts.push_back(format("{} {}", p.name, p.text(r)));
      const std::string name = joined(parts);
      if (by_name.find(name) == by_name.end()) order.push_back(name);
      ChartSeries& series = by_name[name];
      series.name = name;
      series.points.push_back(point(r, axis, panel.categories));
    }
    for (const std::string& name : order) panel.series.push_back(by_name[name]);
    return panel;
  }

  // Adds a category if the axis has no numbers.
  static ChartPoint point(const BenchResult& r, const Parameter& axis, std::vector<std::string>& categories) {
    const std::vector<double> samples = r.samples_ts();
    ChartPoint p;
    p.y = mean(samples);
    p.error = standard_deviation(samples);
    p.tip = format("{}: {:.2f} ± {:.2f} t/s", test_name(r.test), p.y, p.error);
    if (const std::optional<int64_t> number = axis.number(r)) {
      p.x = static_cast<double>(*number);
      return p;
    }
    const std::string name = axis.text(r);
    const auto found = std::find(categories.begin(), categories.end(), name);
    p.x = static_cast<double>(found - categories.begin());
    if (found == categories.end()) categories.push_back(name);
    return p;
  }

  Output& out_;
  const BenchMachine& machine_;
  std::vector<BenchResult> results_;
};

}  // namespace

std::unique_ptr<BenchReport> make_svg_report(Output& out, const BenchMachine& machine) {
  return std::make_unique<SvgReport>(out, machine);
}

}  // namespace tandem::tools
