// tandem perplexity: how well a model predicts a text, computed as llama-perplexity does.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "tools/command.h"
#include "tools/options/options.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/perplexity/score.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

constexpr int64_t kMinChunk = 3;  // the smallest whose last token is scored
constexpr int32_t kUsualChunk = 512;

struct PerplexityOptions {
  ModelOptions model;
  std::string file;
  int32_t n_chunks = -1;
  ContextOptions context;
  RopeOptions rope;
  ThreadOptions threads;
  LogOptions log;
};

// The text as tokens, BOS first where the model wants it, and without the EOS that some want last.
std::vector<int32_t> read_tokens(const PerplexityOptions& o, const Vocab& vocab) {
  TextOptions text;
  text.file = o.file;
  auto ids = vocab.tokenize(read_prompt(text), {.add_special = false, .parse_special = false});
  if (vocab.add_bos()) ids.insert(ids.begin(), vocab.special().bos);
  return ids;
}

int64_t chunk_size(const PerplexityOptions& o, const Model& model) {
  const int64_t n = o.context.ctx_size > 0 ? o.context.ctx_size : model.hparams().n_ctx_train;
  if (n < kMinChunk) {
    throw_error(ErrorCode::usage, "--ctx-size: %lld tokens leave nothing to score, at least %lld are needed",
                static_cast<long long>(n), static_cast<long long>(kMinChunk));
  }
  if (n > model.hparams().n_ctx_train) {
    log_warning("chunks of %lld tokens are longer than the %lld that the model was trained with",
                static_cast<long long>(n), static_cast<long long>(model.hparams().n_ctx_train));
  }
  return n;
}

// Whole chunks of the text, at most as many as asked for.
int64_t chunk_count(const PerplexityOptions& o, size_t n_tokens, int64_t n_ctx) {
  const auto n = static_cast<int64_t>(n_tokens);
  if (n < 2 * n_ctx) {
    throw_error(ErrorCode::usage,
                "%s: the text has %lld tokens, but chunks of %lld need at least %lld "
                "(-c sets their size)",
                printable(o.file, 4096).c_str(), static_cast<long long>(n), static_cast<long long>(n_ctx),
                static_cast<long long>(2 * n_ctx));
  }
  return o.n_chunks <= 0 ? n / n_ctx : std::min<int64_t>(o.n_chunks, n / n_ctx);
}

void run_perplexity(const PerplexityOptions& o) {
  apply_log_options(o.log);
  note_no_effect(o.context);
  install_interrupt_handler();
  const auto model = load_model(o.model, o.rope, o.threads.numa);
  const std::vector<int32_t> ids = read_tokens(o, model->vocab());
  const int64_t n_ctx = chunk_size(o, *model);
  const int64_t n_chunks = chunk_count(o, ids.size(), n_ctx);

  const auto devices = make_devices(o.threads);
  SessionOptions options = session_options(o.context);
  options.n_ctx = n_ctx;
  options.all_logits = true;
  Session session(*model, pointers(devices), options);
  const auto bos = model->vocab().add_bos() ? std::optional(model->vocab().special().bos) : std::nullopt;

  log_info("perplexity of %s: %lld of %lld tokens, %lld chunks of %lld", printable(o.file, 4096).c_str(),
           static_cast<long long>(n_chunks * n_ctx), static_cast<long long>(ids.size()),
           static_cast<long long>(n_chunks), static_cast<long long>(n_ctx));
  Output out;
  PerplexityEstimate estimate;
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < n_chunks; ++i) {
    const auto chunk = std::span(ids).subspan(static_cast<size_t>(i * n_ctx), static_cast<size_t>(n_ctx));
    try {
      score_chunk(session, chunk, bos, estimate, interrupted);
    } catch (const Error&) {
      if (i > 0) out.write("\n");
      out.flush();
      throw;
    }
    out.write(format("[%lld]%.4f,", static_cast<long long>(i + 1), estimate.perplexity()));
    out.flush();
  }
  out.write(
      format("\nFinal estimate: PPL = %.4f +/- %.5f\n", estimate.perplexity(), estimate.standard_error()));
  out.flush();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  log_info("%.1f s, %.1f tokens/s", seconds, static_cast<double>(n_chunks * n_ctx) / seconds);
}

}  // namespace

void add_perplexity(CLI::App& app) {
  CLI::App* command = app.add_subcommand("perplexity", "measure how well a model predicts a text");
  auto o = std::make_shared<PerplexityOptions>();
  o->context.ctx_size = kUsualChunk;
  add_model_options(*command, o->model);
  text(*command, "-f,--file", o->file, "FILE", "the text, - for stdin")->required()->group("Text");
  integer(*command, "--chunks", o->n_chunks, -1, "chunks of the text to read, -1: all")->group("Text");
  add_context_options(*command, o->context);
  add_rope_options(*command, o->rope);
  add_thread_options(*command, o->threads);
  add_log_options(*command, o->log);
  command->footer(
      "The text is cut into chunks of -c tokens, and the second half of each is scored. Printed are the "
      "running\n"
      "estimate after every chunk, and the final one with its standard error.");
  command->callback([o] { run_perplexity(*o); });
}

}  // namespace tandem::tools
