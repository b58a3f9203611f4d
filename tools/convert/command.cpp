// tandem convert DIR -o OUT.gguf: a Hugging Face folder into a GGUF file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/convert/convert.h"
#include "tools/options/types.h"
#include "tools/status_line.h"

namespace tandem::tools {
namespace {

struct CommandOptions {
  std::string folder, out;
  ConvertOptions convert;
  int32_t n_threads = 0;
  LogOptions log;
};

double mib(uint64_t n_bytes) { return static_cast<double>(n_bytes) / 0x1p20; }

// "4G", "500M", "2000K", or a number of bytes.
uint64_t parse_size(const std::string& text) {
  const size_t n_digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = CLI::detail::to_lower(text.substr(n_digits));
  const std::pair<const char*, int> units[] = {{"", 0}, {"k", 10}, {"m", 20}, {"g", 30}, {"kb", 10}, {"mb", 20}, {"gb", 30}};
  for (const auto& [name, shift] : units) {
    if (unit == name && n_digits > 0 && n_digits < 10) return std::stoull(text.substr(0, n_digits)) << shift;
  }
  throw_error(ErrorCode::usage, "--split-max-size: found \"%s\", needed a size such as 4G or 500M", printable(text).c_str());
}

// A bar on a terminal, one line for each tensor where there is none.
class ProgressReport {
 public:
  explicit ProgressReport(const Conversion& conversion)
      : conversion_(conversion), n_bytes_(conversion.n_bytes()), line_(log_level() >= LogLevel::info) {}

  void update(ConvertProgress p) {
    if (!line_.shown()) {
      if (p.tensor_done) log_info("%s", tensor_line(p.index).c_str());
      return;
    }
    const Clock::time_point now = Clock::now();
    if (now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now;
    constexpr int kBar = 24;
    const double share = static_cast<double>(p.n_bytes_done) / static_cast<double>(std::max<uint64_t>(1, n_bytes_));
    const double rate = static_cast<double>(p.n_bytes_done) / seconds();
    const int left = static_cast<int>(static_cast<double>(n_bytes_ - p.n_bytes_done) / rate);
    const int filled = static_cast<int>(kBar * share);
    line_.show(format("[%s%s] %3.0f%%  %.0f MiB/s, %d:%02d left  %zu/%zu %s",
                      std::string(static_cast<size_t>(filled), '#').c_str(),
                      std::string(static_cast<size_t>(kBar - filled), '.').c_str(), 100 * share, rate / 0x1p20,
                      left / 60, left % 60, p.index + 1, conversion_.tensors.size(),
                      conversion_.tensors[p.index].name.c_str()));
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  void clear() { line_.clear(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string tensor_line(size_t index) const {
    const TensorPlan& plan = conversion_.tensors[index];
    std::string dims;
    for (const int64_t size : plan.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(size);
    const std::string from = plan.sources.empty() ? "-" : std::string(source_dtype_name(plan.sources[0]->dtype));
    return format("[%4zu/%4zu] %-32s %-20s %4s -> %-5s %9.2f MiB", index + 1, conversion_.tensors.size(),
                  plan.name.c_str(), ("[" + dims + "]").c_str(), from.c_str(),
                  std::string(dtype_name(plan.dtype)).c_str(), mib(plan.n_bytes()));
  }
  const Conversion& conversion_;
  uint64_t n_bytes_;
  StatusLine line_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

void run_convert(CommandOptions& options) {
  apply_log_options(options.log);
  if (options.out.empty()) throw_error(ErrorCode::usage, "-o is required: the file to write");
  ConvertOptions& how = options.convert;
  how.n_threads = options.n_threads > 0 ? options.n_threads
                                        : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const Conversion conversion = plan_conversion(options.folder, how);
  install_interrupt_handler();
  ProgressReport report(conversion);
  const auto paths = write_conversion(conversion, how, options.out, [&](ConvertProgress p) { report.update(p); });
  report.clear();
  log_info("wrote %s%s: %.2f MiB in %zu tensors, %.1f s", paths.front().c_str(),
           paths.size() > 1 ? format(" and %zu more", paths.size() - 1).c_str() : "", mib(conversion.n_bytes()),
           conversion.tensors.size(), report.seconds());
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<CommandOptions>();
  ConvertOptions& how = options->convert;
  CLI::App* command = app.add_subcommand("convert", "make a GGUF file of a Hugging Face model folder");
  command
      ->add_option("folder", options->folder, "the folder with config.json, *.safetensors and the tokenizer")
      ->type_name("DIR")
      ->required()
      ->group("Model");
  text(*command, "-o,--outfile", options->out, "FILE", "the file to write")->group("Model");
  text(*command, "--model-name", how.name, "NAME", "general.name (default: the folder's name)")->group("Model");
  text(*command, "--pre", how.pre, "NAME", "the pre-tokenizer's name, where it is not recognized")->group("Model");
  choice(*command, "--outtype", "TYPE",
         "f32, f16, bf16, q8_0, or auto: bf16 or f16, as most of the weights are stored", "auto",
         [&how](const std::string& t) {
           how.type = one_of<OutType>("--outtype", CLI::detail::to_lower(t),
                                      {{"auto", OutType::automatic}, {"f32", OutType::F32}, {"f16", OutType::F16},
                                       {"bf16", OutType::BF16}, {"q8_0", OutType::Q8_0}});
         })
      ->group("Output");
  command->add_flag("--vocab-only", how.vocab_only, "the tokenizer alone, without weights")->group("Output");
  choice(*command, "--split-max-size", "SIZE", "cut the file into parts of at most so many bytes, e.g. 4G", "",
         [&how](const std::string& t) { how.max_bytes = parse_size(t); })
      ->group("Output");
  integer(*command, "-t,--threads", options->n_threads, 0, "threads, 0: all processors")->group("Output");
  add_log_options(*command, options->log);
  command->callback([options] { run_convert(*options); });
}

}  // namespace tandem::tools
