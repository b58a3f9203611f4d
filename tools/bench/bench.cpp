// tandem bench: measures tokens per second, with the flags and the tables of llama-bench.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/terminal.h"
#include "base/thread_pool.h"
#include "cpu/isa.h"
#include "gguf/file.h"
#include "tools/bench/measure.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/options.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

struct BenchOptions {
  BenchLists lists;
  BenchSettings settings;
  int32_t delay_s = 0;
  bool progress = false;
  bool flash_attention_off = false;
  ReportFormat output = ReportFormat::markdown, output_err = ReportFormat::none;
  HubOptions hub;
  LogOptions log;
  bool sandbox = true;
};

// A list option: comma-separated, or given several times. parse(text) returns a vector of values.
template <class T, class Parse>
void list(CLI::App& app, const char* group, const char* names, const char* type, const char* shown_default,
          const char* help, std::vector<T>& target, Parse parse) {
  repeated(app, names, type, help,
           [&target, parse](const std::vector<std::string>& texts) {
             target.clear();
             for (const std::string& text : texts) {
               for (auto&& value : parse(text)) target.push_back(value);
             }
           })
      .default_str(shown_default)
      .group(group);
}

void integers(CLI::App& app, const char* group, const char* names, const char* option, const char* help,
              std::vector<int32_t>& target, int32_t min) {
  const std::string usual = std::to_string(target.front());
  list(app, group, names, "N", usual.c_str(), help, target,
       [option, min](const std::string& text) { return parse_ranges(option, text, min); });
}

// A list option whose values are words.
template <class T, class Parse>
void words(CLI::App& app, const char* group, const char* names, const char* type, const char* shown_default,
           const char* help, std::vector<T>& target, Parse parse) {
  list(app, group, names, type, shown_default, help, target, [parse](const std::string& text) {
    std::vector<T> values;
    for (const std::string& word : split_list(text)) values.push_back(parse(word));
    return values;
  });
}

std::pair<int32_t, int32_t> parse_pair(const std::string& text) {
  const size_t comma = text.find(',');
  if (comma == std::string::npos) {
    throw_error(ErrorCode::usage, "--prompt-gen: '{}' is not of the form PP,TG, such as 512,128",
                printable(text));
  }
  return {static_cast<int32_t>(parse_integer("--prompt-gen", text.substr(0, comma), 0)),
          static_cast<int32_t>(parse_integer("--prompt-gen", text.substr(comma + 1), 0))};
}

bool parse_on_off(const char* option, const std::string& text) {
  const Toggle value = parse_toggle(option, text);
  if (value == Toggle::automatic) {
    throw_error(ErrorCode::usage, "{}: '{}' is neither 0 nor 1", option, printable(text));
  }
  return value == Toggle::on;
}

void add_test_options(CLI::App& app, BenchLists& o) {
  const char* group = "Tests";
  words(app, group, "-m,--model", "FILE", "", "GGUF file", o.model,
        [](const std::string& name) { return name; });
  integers(app, group, "-p,--n-prompt", "--n-prompt", "prompt tokens, computed together; 0: skip this test",
           o.n_prompt, 0);
  integers(app, group, "-n,--n-gen", "--n-gen", "tokens to generate one by one; 0: skip this test", o.n_gen,
           0);
  list(app, group, "--prompt-gen", "PP,TG", "",
       "measure a prompt followed by generation; one pair per option", o.prompt_gen,
       [](const std::string& text) { return std::vector{parse_pair(text)}; });
  integers(app, group, "-d,--n-depth", "--n-depth", "tokens in the cache before a test starts", o.n_depth, 0);
}

void add_parameter_options(CLI::App& app, BenchLists& o) {
  const char* group = "Parameters";
  integers(app, group, "-t,--threads", "--threads", "number of threads", o.n_threads, 1);
  words(app, group, "--isa",
        "best|scalar|avx2|avx_vnni|avx512|avx512_vnni|avx512_vbmi|avx512_bf16|avx512_amx", "best",
        "instruction set of the CPU's kernels", o.isa, [](const std::string& name) {
          return name == "best" ? std::string() : std::string(cpu::isa_name(cpu::supported_isa(name)));
        });
  integers(app, group, "-b,--batch-size", "--batch-size", "maximum prompt tokens per batch", o.n_batch, 1);
  integers(app, group, "--ubatch-size", "--ubatch-size", "maximum tokens computed at once (micro-batch)",
           o.n_ubatch, 1);
  const auto cache_type = [&](const char* option, const char* help, std::vector<DType>& target) {
    words(app, group, option, "TYPE", "f16", help, target,
          [option](const std::string& word) { return parse_cache_type(option, word); });
  };
  cache_type("--cache-type-k",
             "type of cached keys: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4 or kivi2",
             o.type_k);
  cache_type("--cache-type-v",
             "type of cached values: f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, kivi4 or kivi2",
             o.type_v);
  list(app, group, "--n-gpu-layers", "N|all|auto", "auto", "number of layers on GPUs", o.n_gpu_layers,
       [](const std::string& text) {
         if (text == "auto") return std::vector<int32_t>{kAutoGpuLayers};
         if (text == "all") return std::vector<int32_t>{kAllGpuLayers};
         return parse_ranges("--n-gpu-layers", text, 0);
       });
  words(app, group, "--no-kv-offload", "0|1", "0", "keep the KV cache in host memory", o.no_kv_offload,
        [](const std::string& word) { return parse_on_off("--no-kv-offload", word); });
  words(app, group, "--mmap", "0|1", "1", "map the file instead of reading it into memory", o.mmap,
        [](const std::string& word) { return parse_on_off("--mmap", word); });
}

Option report_format(CLI::App& app, const char* names, const char* shown_default, const char* help,
                     ReportFormat& target) {
  const std::string option = std::string(names).substr(std::string(names).find("--"));
  return choice(app, names, "FORMAT", help, shown_default, [option, &target](const std::string& value) {
    target = one_of<ReportFormat>(option, value,
                                  {{"md", ReportFormat::markdown},
                                   {"csv", ReportFormat::csv},
                                   {"json", ReportFormat::json},
                                   {"jsonl", ReportFormat::jsonl},
                                   {"svg", ReportFormat::svg},
                                   {"none", ReportFormat::none}});
  });
}

// The placement options of run and chat, except -ngl and -nkvo, which are lists here.
void add_placement_options(CLI::App& app, BenchSettings& settings) {
  add_offload_options(app, settings.engine, settings.explain);
  for (const char* name : {"--n-gpu-layers", "--no-kv-offload"}) remove_option(app, name);
  add_numa_option(app, settings.engine.devices, "Parameters");
  choice(app, "--kv-rotate", "on|off|auto", "rotate heads before they are cached; auto: those of 4-bit types",
         "off",
         [&settings](const std::string& value) {
           settings.engine.context.kv_rotate = parse_toggle("--kv-rotate", value);
         })
      .group("Parameters");
  add_sparse_option(app, settings.engine.context, "Parameters");
  add_spill_options(app, settings.engine.context, "Parameters");
}

void add_run_options(CLI::App& app, BenchOptions& o) {
  const char* group = "Runs and output";
  integer(app, "-r,--repetitions", o.settings.repetitions, 1, "measurements per test").group(group);
  flag(app, "--warmup,!--no-warmup", o.settings.warmup,
       "run each test once before measuring it (default: on)")
      .group(group);
  integer(app, "--ctx-size", o.settings.n_ctx, 0, "minimum context size, if a test needs less").group(group);
  integer(app, "--delay", o.delay_s, 0, "seconds to wait before each test").group(group);
  report_format(app, "-o,--output", "md",
                "format of the report: md, csv, json, jsonl, svg (a picture) or none", o.output)
      .group(group);
  report_format(app, "--output-err", "none", "format of a second report on stderr", o.output_err)
      .group(group);
  flag(app, "--progress", o.progress, "report each test on stderr, even if that is not a terminal")
      .group(group);
  bare_choice(app, "--flash-attn", "on|off|auto", "on", "always on", [&o](const std::string& text) {
    for (const std::string& word : split_list(text)) {
      if (parse_toggle("--flash-attn", word) == Toggle::off) o.flash_attention_off = true;
    }
  }).group(kNoEffectGroup);
}

// ---- Running ----

void wait_before_test(int32_t seconds) {
  using namespace std::chrono_literals;
  for (int64_t tenths = 0; tenths < int64_t{seconds} * 10 && !interrupted(); ++tenths) {
    std::this_thread::sleep_for(100ms);
  }
}

// Both reports, either of which may be none.
class Reports {
 public:
  Reports(const BenchOptions& o, const BenchMachine& machine, std::span<const BenchCase> cases)
      : out_(1), err_(2) {
    reports_[0] = make_report(o.output, out_, machine, cases, columns_of(STDOUT_FILENO));
    reports_[1] = make_report(o.output_err, err_, machine, cases, columns_of(STDERR_FILENO));
  }
  template <class Fn>
  void each(Fn&& fn) {
    for (const auto& report : reports_) {
      if (report) fn(*report);
    }
  }

 private:
  static size_t columns_of(int descriptor) {
    return isatty(descriptor) == 1 ? terminal_columns(descriptor) : SIZE_MAX;
  }

  Output out_, err_;
  std::unique_ptr<BenchReport> reports_[2];
};

void measure_all(const BenchOptions& o, std::span<const BenchCase> cases, Reports& reports,
                 StatusLine& status) {
  BenchRunner runner(o.settings);
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string name =
        format("test {} of {}: {}, -t {}", i + 1, cases.size(), test_name(cases[i]), cases[i].n_threads);
    if (o.progress && !status.shown()) log_info("{}", name);
    wait_before_test(o.delay_s);
    try {
      const BenchResult result =
          runner.run(cases[i], [&](const std::string& stage) { status.show(name + ": " + stage); });
      status.clear();
      reports.each([&](BenchReport& report) { report.row(result); });
    } catch (const Error& e) {
      if (e.code() != ErrorCode::interrupted) throw;
      throw_error(ErrorCode::interrupted, "interrupted after {} of {} tests", i, cases.size());
    }
  }
}

// Downloads what is not on this machine.
void find_models(BenchOptions& o) {
  if (o.lists.model.empty()) o.lists.model.push_back("");
  for (std::string& model : o.lists.model) model = model_path(model, o.hub);
}

// Before the table: that layers cannot go to a GPU that is not there.
void report_missing_gpu(const BenchOptions& o) {
  const auto& layers = o.lists.n_gpu_layers;
  if (std::none_of(layers.begin(), layers.end(), [](int32_t n) { return n > 0; })) return;
  EngineOptions wanted = o.settings.engine;
  wanted.offload.n_gpu_layers = 1;
  make_devices(wanted);
}

void run_bench(BenchOptions& o) {
  apply_log_options(o.log);
  check_options(o.settings.engine);
  install_interrupt_handler();
  if (o.flash_attention_off) {
    log_warning("--flash-attn off has no effect: flash attention is the only implementation");
  }
  find_models(o);
  Confinement confinement(o.sandbox);
  confinement.runs(o.settings.engine);
  for (const std::string& model : o.lists.model) confinement.reads_model(model);
  confinement.begin();
  report_missing_gpu(o);
  const auto& threads = o.lists.n_threads;
  if (!threads.empty()) warn_of_threads(*std::max_element(threads.begin(), threads.end()));
  const std::vector<BenchCase> cases = make_cases(o.lists);
  for (const std::string& model : o.lists.model) {  // report a bad file now rather than in an hour
    GgufFile(model, {.metadata_only = true});
  }
  // On a pipe the rows may come to the same terminal later, behind this line.
  StatusLine status(!is_pipe(STDOUT_FILENO));
  status.show("measuring the memory bandwidth");
  const BenchMachine machine = inspect_machine();
  status.clear();

  Reports reports(o, machine, cases);
  reports.each([](BenchReport& report) { report.begin(); });
  try {
    measure_all(o, cases, reports, status);
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error&) {
    status.clear();
    reports.each([](BenchReport& report) { report.end(); });
    throw;
  }
  reports.each([](BenchReport& report) { report.end(); });
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App& command = add_command(app, "bench", "measure tokens per second and memory traffic");
  auto options = std::make_shared<BenchOptions>();
  options->lists.n_threads = {physical_core_count()};
  add_test_options(command, options->lists);
  add_hub_options(command, options->hub);
  add_placement_options(command, options->settings);
  add_parameter_options(command, options->lists);
  add_run_options(command, *options);
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_footer(
      command,
      "Placement options that are not given are chosen as for run and chat.\n"
      "Tests and parameters take lists: 1,2,4 or 1-4 or 512-2048+512 or 1-8*2, or the option several times.\n"
      "Every combination is measured.\n\n"
      "read/token: bytes of weights and cache that each token reads. bandwidth: the speed of reading them, "
      "as a\n"
      "share of this machine's memory bandwidth, which is measured first.");
  set_callback(command, [&command, options] {
    const auto given = [&](const char* name) { return is_given(command, name); };
    ContextOptions& context = options->settings.engine.context;
    context.n_ubatch_given = given("--ubatch-size");
    context.kv_dtype_given = given("--cache-type-k") || given("--cache-type-v");
    run_bench(*options);
  });
}

}  // namespace tandem::tools
