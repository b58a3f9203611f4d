// tandem perplexity: measures how well a model predicts a text, as llama-perplexity does.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/options.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/overwrite.h"
#include "tools/perplexity/base_logits.h"
#include "tools/perplexity/kl_divergence.h"
#include "tools/perplexity/score.h"
#include "tools/setup.h"
#include "tools/statistics.h"
#include "tools/text_chunks.h"

namespace tandem::tools {
namespace {

constexpr int32_t kPerplexityChunk = 512;

struct PerplexityOptions : CommandOptions {
  bool sandbox = true;
  ChunkOptions text;
  std::string base;            // file of saved logits, to write or to compare with
  bool kl_divergence = false;  // compare
};

// Runs a model over the chunks of a text.
class Scorer {
 public:
  Scorer(const PerplexityOptions& o, const Model& model, const TextChunks& chunks)
      : chunks_(chunks), devices_(make_devices(o.engine)) {
    EngineOptions options = o.engine;
    options.context.n_ctx = chunks.n_ctx;
    options.context.all_logits = true;
    measure_speeds(options, devices_, model);
    session_ = std::make_unique<Session>(model, pointers(devices_), options, explain_on_stderr(o.explain));
    if (model.vocab().add_bos()) bos_ = model.vocab().special().bos;
  }

  // after_chunk returns the text to print. The output ends with a line break even when a chunk fails.
  void run(const ScoreFn& score, const std::function<std::string(int64_t)>& after_chunk) {
    Progress progress("tokens", chunks_.n_chunks * chunks_.n_ctx);
    for (int64_t i = 0; i < chunks_.n_chunks; ++i) {
      try {
        score_chunk(*session_, chunks_.chunk(i), bos_, score, interrupted);
      } catch (const Error&) {
        progress.clear();
        if (i > 0) out_.write("\n");
        out_.flush();
        throw;
      }
      progress.clear();
      out_.write(after_chunk(i));
      out_.flush();
      if (isatty(STDOUT_FILENO) == 0) progress.update((i + 1) * chunks_.n_ctx);
    }
    progress.clear();
    seconds_ = progress.seconds();
  }

  // For the end: in between, it would be a line inside the table.
  void report_speed() const {
    log_info("{:.1f} s, {:.1f} tokens/s", seconds_,
             static_cast<double>(chunks_.n_chunks * chunks_.n_ctx) / seconds_);
  }

  void print(const std::string& text) {
    out_.write(text);
    out_.flush();
  }

 private:
  const TextChunks& chunks_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::unique_ptr<Session> session_;
  std::optional<int32_t> bos_;
  Output out_;
  double seconds_ = 0;
};

void announce(const std::string& what, const TextChunks& chunks, size_t n_tokens) {
  log_info("{}: {} of {} tokens, {} of {}", what, chunks.n_chunks * chunks.n_ctx, n_tokens,
           counted(chunks.n_chunks, "chunk"), chunks.n_ctx);
}

void measure_perplexity(const PerplexityOptions& o, const Model& model) {
  const TextChunks chunks = read_chunks(o.text, chunk_size(o.engine.context, model), model.vocab());
  std::optional<BaseLogitsWriter> saved;
  if (!o.base.empty()) saved.emplace(o.base, chunks, model.hparams().n_vocab);
  Scorer scorer(o, model, chunks);
  announce("perplexity of " + printable(o.text.file, 4096), chunks, chunks.tokens.size());
  PerplexityEstimate estimate;
  scorer.run(
      [&](std::span<const float> logits, int32_t target) {
        estimate.add(negative_log_likelihood(logits, target));
        if (saved) saved->add(logits);
      },
      [&](int64_t i) { return format("[{}]{:.4f},", i + 1, estimate.perplexity()); });
  scorer.print(format("\nFinal estimate: PPL = {:.4f} +/- {:.5f}\n", estimate.perplexity(),
                      estimate.standard_error()));
  scorer.report_speed();
  if (!saved) return;
  saved->finish();
  log_info("wrote {}", o.base);
}

void measure_divergence(const PerplexityOptions& o, const Model& model) {
  BaseLogitsReader base(o.base);
  if (base.n_vocab() != model.hparams().n_vocab) {
    throw_error(ErrorCode::bad_file, "{}: the logits are of a vocabulary of {}, needed the {} of {}", o.base,
                base.n_vocab(), model.hparams().n_vocab, model.path());
  }
  TextChunks chunks = base.chunks();
  if (o.text.n_chunks > 0) chunks.n_chunks = std::min<int64_t>(chunks.n_chunks, o.text.n_chunks);
  Scorer scorer(o, model, chunks);
  announce("divergence from " + printable(o.base, 4096), chunks, chunks.tokens.size());
  KlDivergence divergence;
  scorer.print(kl_table_header());
  int64_t row = 0;
  scorer.run(
      [&](std::span<const float> logits, int32_t target) { divergence.add(logits, base.row(row++), target); },
      [&](int64_t i) { return kl_table_row(i + 1, divergence); });
  scorer.print(kl_report(divergence));
  scorer.report_speed();
}

// Before the model is loaded.
void check_base(PerplexityOptions& o) {
  find_model_file(o);
  const std::span<const std::string> outputs(&o.base, 1);
  for (const std::string& input : {o.engine.model.path, o.text.file}) refuse_to_overwrite(input, outputs);
  refuse_other_kinds(FileKind::logits, outputs);
}

void run_perplexity(PerplexityOptions& o) {
  apply_log_options(o.log);
  note_no_effect(o);
  if (o.kl_divergence && o.base.empty()) {
    throw_error(ErrorCode::usage, "--kl-divergence: needed --kl-divergence-base, the logits to compare with");
  }
  if (!o.kl_divergence && o.text.file.empty()) throw_error(ErrorCode::usage, "--file is required");
  if (!o.kl_divergence && !o.base.empty()) check_base(o);
  find_model_file(o);
  Confinement confinement(o.sandbox);
  confinement.runs(o.engine).reads(o.text.file);
  if (o.kl_divergence) {
    confinement.reads(o.base);
  } else {
    confinement.writes(o.base);
  }
  confinement.begin();
  install_interrupt_handler();
  const auto model = load_model(o);
  if (o.kl_divergence) {
    measure_divergence(o, *model);
  } else {
    measure_perplexity(o, *model);
  }
}

}  // namespace

void add_perplexity(CLI::App& app) {
  CLI::App& command = add_command(app, "perplexity", "measure how well a model predicts a text");
  auto o = std::make_shared<PerplexityOptions>();
  o->engine.context.n_ctx = kPerplexityChunk;
  add_model_options(command, *o);
  text(command, "-f,--file", o->text.file, "FILE", "the text, - for stdin").group("Text");
  text(command, "--kl-divergence-base,--save-all-logits", o->base, "FILE",
       "file to write the model's predictions to; with --kl-divergence, to read them from")
      .group("Text");
  flag(command, "--kl-divergence", o->kl_divergence,
       "compare with the predictions in the base file, over the text that it contains")
      .group("Text");
  integer(command, "--chunks", o->text.n_chunks, -1, "chunks of the text to read, -1: all").group("Text");
  add_context_options(command, o->engine.context, o->flash_attention);
  add_rope_options(command, o->engine.model.rope);
  add_thread_options(command, o->engine.devices);
  add_offload_options(command, o->engine, o->explain);
  add_log_options(command, o->log);
  add_sandbox_option(command, o->sandbox);
  set_footer(
      command,
      "The text is cut into chunks of -c tokens, and the second half of each is scored. Prints the "
      "running\n"
      "estimate after every chunk, and the final one with its standard error.\n\n"
      "To measure what a quantization loses: let the original write --kl-divergence-base, then run the\n"
      "quantized model with --kl-divergence. The file format is that of llama-perplexity.");
  set_callback(command, [o] { run_perplexity(*o); });
}

}  // namespace tandem::tools
