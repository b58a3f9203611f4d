// tandem split and tandem merge: write a model as several files, and as one again.
#include <memory>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/split/split.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

constexpr int32_t kDefaultTensors = 128;

struct CopyOptions {
  std::string in, out;
  std::string max_size;     // empty: by tensors
  int32_t max_tensors = 0;  // 0: not given
  bool first_without_tensors = false;
  bool dry_run = false;
  LogOptions log;
  bool sandbox = true;
};

std::string size_text(uint64_t n_bytes) {
  return format("{:.2f} MiB", static_cast<double>(n_bytes) / 0x1p20);
}

SplitLimits split_limits(const CopyOptions& o) {
  SplitLimits limits;
  limits.first_without_tensors = o.first_without_tensors;
  limits.names = PartNames::always_numbered;
  if (!o.max_size.empty()) {
    if (o.max_tensors > 0) {
      throw_error(ErrorCode::usage, "--split-max-tensors and --split-max-size: needed one of them");
    }
    limits.max_bytes = parse_split_size("--split-max-size", o.max_size);
  } else {
    limits.max_tensors = static_cast<uint64_t>(o.max_tensors > 0 ? o.max_tensors : kDefaultTensors);
  }
  return limits;
}

std::string part_line(const SplitPart& part) {
  return format("{}: {}, {}", printable(part.path, 4096),
                counted(static_cast<int64_t>(part.n_tensors), "tensor"), size_text(part.n_bytes));
}

void print_parts(const std::vector<SplitPart>& parts) {
  Output out;
  for (const SplitPart& part : parts) out.write(part_line(part) + "\n");
  out.flush();
}

// A tensor is never cut, so a part with a large one is larger than asked for.
void report_large_parts(const std::vector<SplitPart>& parts, const CopyOptions& o,
                        const SplitLimits& limits) {
  for (const SplitPart& part : parts) {
    if (limits.max_bytes == 0 || part.n_bytes <= limits.max_bytes) continue;
    log_warning("{}: {}, more than --split-max-size {}: a tensor is never divided",
                printable(part.path, 4096), size_text(part.n_bytes), o.max_size);
  }
}

void run_copy(const CopyOptions& o, const SplitLimits& limits) {
  apply_log_options(o.log);
  Confinement confinement(o.sandbox);
  confinement.reads_model(o.in);
  if (!o.dry_run) confinement.writes_parts(o.out);
  confinement.begin();
  const GgufFile file(o.in, {.prefetch = false});
  const std::vector<SplitPart> parts = list_parts(file, limits, o.out);
  report_large_parts(parts, o, limits);
  if (o.dry_run) return print_parts(parts);
  install_interrupt_handler();
  Progress progress("bytes", static_cast<int64_t>(file.n_tensor_bytes()));
  size_t part = 0, n_tensors_left = parts[0].n_tensors;
  write_parts(file, limits, o.out, [&](const TensorInfo& tensor, uint64_t n_bytes_done, bool tensor_done) {
    progress.update(static_cast<int64_t>(n_bytes_done), tensor.name);
    if (!tensor_done) return;
    while (n_tensors_left == 0) n_tensors_left = parts[++part].n_tensors;  // the first may have none
    if (--n_tensors_left == 0) progress.item_done(part_line(parts[part]));
  });
  progress.clear();
  log_info("wrote {}{}: {}, {}, {:.1f} s", parts.front().path,
           parts.size() > 1 ? format(" and {} more", parts.size() - 1).c_str() : "",
           counted(static_cast<int64_t>(file.tensors().size()), "tensor"), size_text(file.n_tensor_bytes()),
           progress.seconds());
}

void add_files(CLI::App& command, CopyOptions& o, const char* in, const char* out_name, const char* out) {
  text(command, "input", o.in, "IN.gguf", in).required().group("Model");
  text(command, "output", o.out, out_name, out).required().group("Model");
  flag(command, "--dry-run", o.dry_run, "print what would be written, write nothing").group("Output");
}

}  // namespace

void add_split(CLI::App& app) {
  CLI::App& command = add_command(app, "split", "write a model as several smaller files");
  const auto o = std::make_shared<CopyOptions>();
  add_files(command, *o, "the model; if it is split, its first part", "OUT",
            "name of the parts: OUT-00001-of-0000N.gguf and so on");
  integer(command, "--split-max-tensors", o->max_tensors, 1,
          "maximum number of tensors per file (default: 128, without --split-max-size)")
      .default_str("")
      .group("Output");
  text(command, "--split-max-size", o->max_size, "N(M|G)",
       "maximum bytes of tensors per file, in millions or billions: 4G")
      .group("Output");
  flag(command, "--no-tensor-first-split", o->first_without_tensors,
       "write a first file with only the metadata")
      .group("Output");
  add_log_options(command, o->log);
  add_sandbox_option(command, o->sandbox);
  set_callback(command, [o] { run_copy(*o, split_limits(*o)); });
}

void add_merge(CLI::App& app) {
  CLI::App& command = add_command(app, "merge", "write a split model as one file");
  const auto o = std::make_shared<CopyOptions>();
  add_files(command, *o, "the first part of the model", "OUT.gguf", "the file to write");
  add_log_options(command, o->log);
  add_sandbox_option(command, o->sandbox);
  set_callback(command, [o] { run_copy(*o, {}); });
}

}  // namespace tandem::tools
