// tandem imatrix: measures on a text which columns of a model's matrices matter, for quantize --imatrix.
#include <memory>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/progress.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/imatrix/collector.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/overwrite.h"
#include "tools/setup.h"
#include "tools/statistics.h"
#include "tools/text_chunks.h"

namespace tandem::tools {
namespace {

constexpr int32_t kImatrixChunk = 512;

struct ImatrixOptions : CommandOptions {
  bool sandbox = true;
  ChunkOptions text;
  int32_t first_chunk = 0;
  std::string out = "imatrix.gguf";
  std::vector<std::string> in;  // sums of earlier runs
  bool process_output = false;
  int32_t output_frequency = 10, save_frequency = 0;
};

// Merges all files. The file name is the dataset's name if the file does not have one.
ImportanceSums read_earlier(const ImatrixOptions& o) {
  ImportanceSums sums;
  const int64_t n_ctx = o.engine.context.n_ctx > 0 ? o.engine.context.n_ctx : kImatrixChunk;
  for (const std::string& path : o.in) sums.merge(read_imatrix_sums(path, static_cast<uint32_t>(n_ctx)));
  return sums;
}

// The copy that --save-frequency keeps after n_done chunks.
std::string copy_path(const ImatrixOptions& o, int64_t n_done) {
  return o.out + ".at_" + std::to_string(n_done);
}

void check_copies(const ImatrixOptions& o, int64_t n_chunks) {
  if (o.save_frequency == 0) return;
  for (int64_t n_done = o.save_frequency; n_done <= n_chunks; n_done += o.save_frequency) {
    const std::string path = copy_path(o, n_done);
    refuse_other_kinds(FileKind::imatrix, std::span(&path, 1));
  }
}

class Run {
 public:
  Run(const ImatrixOptions& o, const Model& model, TextChunks chunks)
      : o_(o),
        model_(model),
        chunks_(std::move(chunks)),
        collector_(model.weights(), o.process_output ? OutputTensor::include : OutputTensor::skip,
                   read_earlier(o)),
        cpu_(make_cpu(o.engine.devices,
                      [this](const cpu::ProductInput& input) { collector_.observe(input); })),
        session_(model, {cpu_.get()}, options()) {}

  void measure() {
    const Vocab& vocab = model_.vocab();
    Progress progress("tokens", (chunks_.n_chunks - o_.first_chunk) * chunks_.n_ctx);
    for (int64_t i = o_.first_chunk; i < chunks_.n_chunks; ++i) {
      const auto text = chunks_.chunk(i);
      std::vector<int32_t> tokens(text.begin(), text.end());
      if (vocab.add_bos()) tokens[0] = vocab.special().bos;
      session_.truncate(0);
      const int64_t done = (i - o_.first_chunk) * chunks_.n_ctx;
      progress.update(done, format("chunk {} of {}", i + 1, chunks_.n_chunks));
      session_.evaluate(tokens, [&](int64_t first, int64_t n, std::span<const float>) {
        if (interrupted()) throw Error(ErrorCode::interrupted, interruption());
        progress.update(done + first + n, format("chunk {} of {}", i + 1, chunks_.n_chunks));
      });
      ++n_done_;
      progress.item_done(format("chunk {} of {}", i + 1, chunks_.n_chunks));
      save_in_between();
    }
    progress.clear();
    save(o_.out);
    log_info("wrote {}: {} matrices, {} of {} tokens, {:.1f} s", o_.out, collector_.sums().entries.size(),
             counted(n_done_, "chunk"), chunks_.n_ctx, progress.seconds());
  }

 private:
  EngineOptions options() const {
    EngineOptions options = o_.engine;
    options.context.n_ctx = chunks_.n_ctx;
    options.context.all_logits = true;                   // so that the last layer processes every token
    options.context.latent_form = LatentForm::absorbed;  // its products have activations for inputs
    return options;
  }

  std::string interruption() const {
    const bool saved = o_.output_frequency > 0 && n_done_ >= o_.output_frequency;
    return format("interrupted after {} of {} chunks: {}", n_done_, chunks_.n_chunks - o_.first_chunk,
                  saved ? o_.out + " has those saved before" : o_.out + " is not written");
  }

  void save_in_between() {
    if (o_.output_frequency > 0 && n_done_ % o_.output_frequency == 0) save(o_.out);
    if (o_.save_frequency > 0 && n_done_ % o_.save_frequency == 0) {
      save(copy_path(o_, n_done_));
    }
  }

  void save(const std::string& path) const {
    collector_.check_finite();
    ImportanceSums sums = collector_.sums();
    sums.chunk_size = static_cast<uint32_t>(chunks_.n_ctx);
    sums.n_chunks += static_cast<uint32_t>(n_done_);
    sums.datasets.push_back(o_.text.file);
    write_imatrix(sums, path);
  }

  const ImatrixOptions& o_;
  const Model& model_;
  TextChunks chunks_;
  ImportanceCollector collector_;
  std::unique_ptr<Device> cpu_;
  Session session_;
  int64_t n_done_ = 0;
};

// --in-file without a text: merges the files.
void merge_files(const ImatrixOptions& o) {
  const ImportanceSums sums = read_earlier(o);
  write_imatrix(sums, o.out);
  log_info("wrote {}: {} matrices of {} files", o.out, sums.entries.size(), o.in.size());
}

void run_imatrix(ImatrixOptions& o) {
  apply_log_options(o.log);
  note_no_effect(o);
  if (o.text.file.empty() && o.in.empty()) {
    throw_error(ErrorCode::usage, "needed a text to read (-f) or matrices to merge (--in-file)");
  }
  if (!o.text.file.empty()) find_model_file(o);
  Confinement confinement(o.sandbox);
  confinement.runs(o.engine).reads(o.text.file).writes(o.out).writes_copies(o.out + ".at_");
  for (const std::string& file : o.in) confinement.reads(file);
  confinement.begin();
  for (const std::string& input : {o.engine.model.path, o.text.file}) {
    if (!input.empty()) refuse_to_overwrite(input, std::span(&o.out, 1));
  }
  refuse_other_kinds(FileKind::imatrix, std::span(&o.out, 1));
  if (o.text.file.empty()) return merge_files(o);
  check_writable(o.out);
  install_interrupt_handler();
  const auto model = load_model(o);
  TextChunks chunks = read_chunks(o.text, chunk_size(o.engine.context, *model), model->vocab());
  if (o.first_chunk >= chunks.n_chunks) {
    throw_error(ErrorCode::usage, "--chunk: cannot skip {} of {} chunks, needed fewer", o.first_chunk,
                chunks.n_chunks);
  }
  check_copies(o, chunks.n_chunks - o.first_chunk);
  Run(o, *model, std::move(chunks)).measure();
}

}  // namespace

void add_imatrix(CLI::App& app) {
  CLI::App& command = add_command(app, "imatrix", "measure which weights matter, for quantize --imatrix");
  auto o = std::make_shared<ImatrixOptions>();
  o->engine.context.n_ctx = kImatrixChunk;
  o->text.n_least = 1;
  add_model_options(command, *o);
  text(command, "-f,--file", o->text.file, "FILE", "the text, - for stdin").group("Text");
  integer(command, "--chunks", o->text.n_chunks, -1, "chunks of the text to read, -1: all").group("Text");
  integer(command, "--chunk,--from-chunk", o->first_chunk, 0, "chunks to skip at the start").group("Text");
  flag(command, "--parse-special", o->text.parse_special,
       "parse \"<|im_end|>\" and the like in the text as special tokens")
      .group("Text");
  text(command, "-o,--output,--output-file", o->out, "FILE", "the matrix to write, as GGUF").group("Matrix");
  repeated(command, "--in-file", "FILE",
           "a matrix to add to (GGUF or .dat); may be repeated; without -f the matrices are merged",
           [o](const std::vector<std::string>& files) { o->in = files; })
      .group("Matrix");
  flag(command, "--process-output", o->process_output, "include output.weight").group("Matrix");
  integer(command, "--output-frequency", o->output_frequency, 0,
          "write the matrix so far after every N chunks, 0: only at the end")
      .group("Matrix");
  integer(command, "--save-frequency", o->save_frequency, 0,
          "keep a copy, FILE.at_N, after every N chunks, 0: none")
      .group("Matrix");
  ignored_flag(command, "--no-ppl", "perplexity is never computed here");
  add_context_options(command, o->engine.context, o->flash_attention);
  add_rope_options(command, o->engine.model.rope);
  add_thread_options(command, o->engine.devices);
  add_log_options(command, o->log);
  add_sandbox_option(command, o->sandbox);
  set_footer(
      command,
      "The matrix has, for every weight matrix of the layers, the sum of squares of each column of its "
      "inputs;\n"
      "quantize --imatrix then spends its precision where the inputs are large. It is computed on the CPU.");
  set_callback(command, [o] { run_imatrix(*o); });
}

}  // namespace tandem::tools
