// tandem convert DIR -o OUT.gguf: converts a Hugging Face folder to a GGUF file.
#include <algorithm>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "base/text.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/convert/convert.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/split/split.h"

namespace tandem::tools {
namespace {

struct ConvertCommand {
  std::string folder, out;
  ConvertOptions convert;
  int32_t n_threads = 0;
  LogOptions log;
  bool sandbox = true;
};

double mib(uint64_t n_bytes) {
  return static_cast<double>(n_bytes) / 0x1p20;
}

std::string tensor_line(const Conversion& conversion, size_t index) {
  const TensorMapping& mapping = conversion.tensors[index];
  std::string dims;
  for (const int64_t size : mapping.dims) dims += (dims.empty() ? "" : ", ") + std::to_string(size);
  const std::string from =
      mapping.sources.empty() ? "-" : std::string(source_dtype_name(mapping.sources[0]->dtype));
  return format("[{:4}/{:4}] {:<32} {:<20} {:>4} -> {:<5} {:9.2f} MiB", index + 1, conversion.tensors.size(),
                mapping.name, ("[" + dims + "]"), from, dtype_name(mapping.dtype), mib(mapping.n_bytes()));
}

void run_convert(ConvertCommand& options) {
  apply_log_options(options.log);
  ConvertOptions& how = options.convert;
  how.n_threads = options.n_threads > 0 ? options.n_threads
                                        : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  Confinement confinement(options.sandbox);
  confinement.reads_folder(options.folder).writes_parts(options.out).begin();
  const Conversion conversion = prepare_conversion(options.folder, how);
  install_interrupt_handler();
  Progress progress("bytes", static_cast<int64_t>(conversion.n_bytes()));
  const auto paths = write_conversion(conversion, how, options.out, [&](ConvertProgress p) {
    progress.update(static_cast<int64_t>(p.n_bytes_done), conversion.tensors[p.index].name);
    if (p.tensor_done) progress.item_done(tensor_line(conversion, p.index));
  });
  progress.clear();
  if (how.vocab_only) {
    const size_t n_tokens = conversion.metadata.get_strings("tokenizer.ggml.tokens").size();
    return log_info("wrote {}: a vocabulary of {} tokens, no weights", paths.front(), n_tokens);
  }
  log_info("wrote {}{}: {:.2f} MiB in {} tensors, {:.1f} s", paths.front(),
           paths.size() > 1 ? format(" and {} more", paths.size() - 1).c_str() : "",
           mib(conversion.n_bytes()), conversion.tensors.size(), progress.seconds());
}

}  // namespace

void add_convert(CLI::App& app) {
  const auto options = std::make_shared<ConvertCommand>();
  ConvertOptions& how = options->convert;
  CLI::App& command = add_command(app, "convert", "convert a Hugging Face model folder to a GGUF file");
  text(command, "folder", options->folder, "DIR",
       "the folder with config.json, *.safetensors and the tokenizer")
      .required()
      .group("Model");
  text(command, "-o,--outfile", options->out, "FILE", "the file to write").required().group("Model");
  text(command, "--model-name", how.name, "NAME", "general.name (default: the folder's name)").group("Model");
  text(command, "--pre", how.pre, "NAME", "the pre-tokenizer's name, if it is not recognized").group("Model");
  choice(command, "--outtype", "TYPE",
         "f32, f16, bf16, q8_0, or auto: bf16 or f16, as most weights are stored", "auto",
         [&how](const std::string& t) {
           how.type = one_of<OutType>("--outtype", lower_case(t),
                                      {{"auto", OutType::automatic},
                                       {"f32", OutType::F32},
                                       {"f16", OutType::F16},
                                       {"bf16", OutType::BF16},
                                       {"q8_0", OutType::Q8_0}});
         })
      .group("Output");
  flag(command, "--mtp", how.mtp,
       "keep the MTP layer, which guesses tokens (--spec mtp), also for families of which older programs do "
       "not know it")
      .group("Output");
  flag(command, "--vocab-only", how.vocab_only, "write only the tokenizer, without weights").group("Output");
  choice(command, "--split-max-size", "SIZE", "split the file into parts of at most SIZE bytes, e.g. 4G", "",
         [&how](const std::string& t) { how.max_bytes = parse_split_size("--split-max-size", t); })
      .group("Output");
  integer(command, "-t,--threads", options->n_threads, 0, "threads, 0: all processors").group("Output");
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_callback(command, [options] { run_convert(*options); });
}

}  // namespace tandem::tools
