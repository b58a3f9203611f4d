// tandem quantize IN.gguf [OUT.gguf] TYPE [THREADS]: converts a model to another file type.
#include <algorithm>
#include <cctype>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/quantize/quantize.h"
#include "tools/quantize/recipe.h"

namespace tandem::tools {
namespace {

struct QuantizeCommand {
  std::vector<std::string> arguments;  // IN, OUT (optional), TYPE, THREADS (optional)
  std::string in, out, imatrix, recipe;
  QuantizeOptions quantize;
  bool pure = false, dry_run = false;
  LogOptions log;
  bool sandbox = true;
};

std::string upper_case(std::string text) {
  for (char& c : text) c = static_cast<char>(toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string type_names() {
  std::string names;
  for (const FileTypeInfo& info : all_file_types()) names += std::string(info.name) + " ";
  return names + "COPY";
}

// Parses a name or a number of general.file_type; nullopt for anything else.
std::optional<FileType> parse_type(const std::string& text) {
  for (const FileTypeInfo& info : all_file_types()) {
    if (text == std::to_string(static_cast<uint32_t>(info.type))) return info.type;
  }
  return file_type_from_name(text);
}

bool is_type(const std::string& text) {
  return upper_case(text) == "COPY" || parse_type(text).has_value();
}

// Assigns the arguments of IN [OUT] TYPE [THREADS]: the second is OUT unless it is a type.
void parse_arguments_of(QuantizeCommand& options) {
  std::vector<std::string> rest = options.arguments;
  const auto take = [&rest] {
    std::string first = rest.front();
    rest.erase(rest.begin());
    return first;
  };
  options.in = take();
  const bool has_out = !rest.empty() && !is_type(rest.front());
  if (has_out) options.out = take();
  if (rest.empty() || !is_type(rest.front())) {
    const std::string& found = rest.empty() ? options.out : rest.front();
    std::vector<std::string> known = {"COPY"};
    for (const FileTypeInfo& info : all_file_types()) known.emplace_back(info.name);
    throw_error(ErrorCode::usage, "TYPE: found \"{}\", needed one of: {}{}", printable(found), type_names(),
                did_you_mean(found, known));
  }
  const std::string type = upper_case(take());
  if (type != "COPY") options.quantize.type = parse_type(type);
  const int64_t n_threads = rest.empty() ? 0 : parse_integer("THREADS", take(), 0, 4096);
  options.quantize.n_threads = n_threads > 0
                                   ? static_cast<int>(n_threads)
                                   : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  if (!rest.empty()) {
    throw_error(ErrorCode::usage, "found \"{}\" after THREADS, needed nothing", printable(rest.front()));
  }
  if (!has_out) {
    const bool is_number = std::isdigit(static_cast<unsigned char>(type[0])) != 0;
    const std::string name = is_number ? std::string(file_type_info(*options.quantize.type).name) : type;
    const size_t slash = options.in.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : options.in.substr(0, slash + 1);
    options.out = folder + "ggml-model-" + name + ".gguf";
  }
}

double mib(uint64_t n_bytes) {
  return static_cast<double>(n_bytes) / 0x1p20;
}

std::string tensor_line(const QuantizeJob& job, size_t index) {
  const QuantizedTensor& tensor = job.tensors[index];
  const std::string from(dtype_name(tensor.source->dtype)), to(dtype_name(tensor.dtype));
  std::string line = format("[{:4}/{:4}] {:<32} {:<20} {:>6}", index + 1, job.tensors.size(),
                            printable(tensor.source->name), tensor.source->shape_text(), from);
  if (tensor.dtype == tensor.source->dtype) return line + format("  {:9.2f} MiB", mib(tensor.n_bytes));
  return line + format("  {:9.2f} MiB -> {:>6} {:9.2f} MiB{}", mib(tensor.source->n_bytes), to,
                       mib(tensor.n_bytes), tensor.importance ? ", with importance" : "");
}

std::string total_line(const QuantizeJob& job) {
  const auto bits = [&](uint64_t n_bytes) {
    return 8.0 * static_cast<double>(n_bytes) / static_cast<double>(std::max<int64_t>(1, job.n_weights));
  };
  return format("{:.2f} MiB ({:.2f} bits a weight) -> {:.2f} MiB ({:.2f} bits a weight)", mib(job.n_bytes_in),
                bits(job.n_bytes_in), mib(job.n_bytes_out), bits(job.n_bytes_out));
}

void print_sizes(const QuantizeJob& job) {
  Output out;
  for (size_t i = 0; i < job.tensors.size(); ++i) out.write(tensor_line(job, i) + "\n");
  out.write("total: " + total_line(job) + "\n");
  out.flush();
}

void run_quantize(QuantizeCommand& options) {
  apply_log_options(options.log);
  parse_arguments_of(options);
  if (options.pure) options.quantize.mix = Mix::pure;
  Confinement confinement(options.sandbox);
  confinement.reads_model(options.in).reads_model(options.recipe).reads(options.imatrix);
  if (!options.dry_run) confinement.writes_parts(options.out);
  confinement.begin();

  QuantizeOptions& how = options.quantize;
  if (!options.recipe.empty()) {
    for (DTypeRule& rule : read_recipe(options.recipe)) how.rules.push_back(std::move(rule));
  }
  if (!how.rules.empty() && (!how.type || dtype_info(file_type_info(*how.type).base).block_elements == 1)) {
    log_warning("--tensor-type and --recipe have no effect: the file type does not quantize");
  }

  if (how.type && wants_importance(*how.type) && options.imatrix.empty()) {
    log_warning("{} without --imatrix loses much of the model's quality", file_type_info(*how.type).name);
  }

  std::optional<ImportanceMatrix> imatrix;
  if (!options.imatrix.empty()) imatrix = read_imatrix(options.imatrix);
  const ImportanceMatrix* importance = imatrix ? &*imatrix : nullptr;
  const GgufFile file(options.in, {.prefetch = false});
  const QuantizeJob job = prepare_quantize(file, how, importance);
  if (job.n_fallback > 0) {
    log_warning("{} a fallback type: the row length is not a multiple of the block size",
                job.n_fallback == 1 ? "1 tensor uses" : format("{} tensors use", job.n_fallback));
  }
  if (options.dry_run) return print_sizes(job);

  install_interrupt_handler();
  Progress progress("weights", job.n_weights);
  write_quantized(file, job, how, importance, options.out, [&](QuantizeProgress p) {
    if (p.tensor_done) progress.item_done(tensor_line(job, p.index));
    progress.update(p.n_weights_done, format("{}/{} ", p.index + 1, job.tensors.size()) +
                                          std::string(job.tensors[p.index].source->name));
  });
  progress.clear();
  log_info("wrote {}: {}, {:.1f} s", output_paths(file, how, options.out).front(), total_line(job),
           progress.seconds());
}

}  // namespace

void add_quantize(CLI::App& app) {
  const auto options = std::make_shared<QuantizeCommand>();
  QuantizeOptions& how = options->quantize;
  CLI::App& command = add_command(app, "quantize", "convert a model to another file type, e.g. Q4_K_M");
  texts(command, "arguments", options->arguments, "IN.gguf [OUT.gguf] TYPE [THREADS]",
        ("TYPE: " + type_names() +
         ". OUT.gguf defaults to ggml-model-TYPE.gguf next to the input. "
         "THREADS defaults to all processors")
            .c_str())
      .expected(2, 4)
      .required()
      .group("Model");
  text(command, "--imatrix", options->imatrix, "FILE",
       "importance matrix (GGUF or .dat): which columns matter")
      .group("Quality");
  flag(command, "--pure", options->pure, "use the type's base dtype for every matrix").group("Quality");
  flag(command, "--leave-output-tensor", how.leave_output, "keep output.weight as it is").group("Quality");
  choice(command, "--output-tensor-type", "TYPE", "dtype of output.weight", "", [&how](const std::string& t) {
    how.output_dtype = parse_dtype("--output-tensor-type", t);
  }).group("Quality");
  choice(command, "--token-embedding-type", "TYPE", "dtype of the token embeddings", "",
         [&how](const std::string& t) { how.token_embd_dtype = parse_dtype("--token-embedding-type", t); })
      .group("Quality");
  repeated(
      command, "--tensor-type", "PATTERN=TYPE",
      "dtype of tensors whose name matches the regular expression; may be repeated, the first match wins",
      [&how](const std::vector<std::string>& rules) {
        for (const std::string& rule : rules) how.rules.push_back(parse_rule("--tensor-type", rule));
      })
      .group("Quality");
  text(command, "--recipe", options->recipe, "FILE",
       "file with lines of PATTERN=TYPE, used after --tensor-type; or a GGUF file whose mix is taken over")
      .group("Quality");
  flag(command, "--allow-requantize", how.allow_requantize,
       "quantize tensors that are already quantized, at a loss of quality")
      .group("Quality");
  flag(command, "--keep-split", how.keep_split, "write as many parts as the input has").group("Output");
  flag(command, "--dry-run", options->dry_run, "print the size of each tensor and the total, write nothing")
      .group("Output");
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_callback(command, [options] { run_quantize(*options); });
}

}  // namespace tandem::tools
