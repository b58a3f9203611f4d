// tandem run: completes a prompt.
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/terminal.h"
#include "base/utf8.h"
#include "engine/generate.h"
#include "engine/session_file.h"
#include "text/stream_detokenizer.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/expert_stats.h"
#include "tools/incomplete.h"
#include "tools/json_events.h"
#include "tools/kv_store.h"
#include "tools/markdown/word_wrap.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/setting_flags.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/overwrite.h"
#include "tools/prompt_progress.h"
#include "tools/setup.h"
#include "tools/speculation.h"
#include "tools/stages.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

struct RunOptions : CommandOptions {
  bool sandbox = true;
  SamplerParams sampling;
  TextOptions text;
  SpeculationOptions speculation;
  bool context_shift = false, exact_shift = false;
  std::string prompt_cache;  // a session file
  KvStoreOptions kv_store;
  std::string expert_stats, expert_trace;
  bool prompt_cache_all = false, prompt_cache_ro = false;
  StageOptions stages;
};

// Throws Error if the prompt is empty or not UTF-8.
void check_prompt(const std::string& prompt, const TextOptions& options) {
  const std::string source = options.file.empty() ? "the prompt" : printable(options.file, 4096);
  if (prompt.empty()) {
    throw_error(ErrorCode::usage,
                "{} is empty: give a text after the model, with -p, with -f FILE, or on stdin", source);
  }
  const size_t valid = valid_utf8_prefix(prompt);
  if (valid == prompt.size()) return;
  throw_error(options.file.empty() ? ErrorCode::usage : ErrorCode::bad_file,
              "{}: found byte 0x{:02x} at offset {}, needed UTF-8", source,
              static_cast<unsigned>(static_cast<unsigned char>(prompt[valid])), valid);
}

void check_fits(const Session& session, size_t n_prompt) {
  if (static_cast<int64_t>(n_prompt) <= session.n_ctx()) return;
  throw_error(ErrorCode::usage,
              "the prompt has {}, but the context holds {}: use -c {} or more, or a shorter prompt",
              counted(static_cast<int64_t>(n_prompt), "token"), session.n_ctx(), n_prompt + 1);
}

// The same text as when these tokens were generated.
std::string text_of(const Vocab& vocab, std::span<const int32_t> ids) {
  StreamDetokenizer detokenizer(vocab);
  std::string text;
  for (const int32_t id : ids) text += detokenizer.add(id);
  return text;
}

// The tokens of the prompt that a cache file restored into the session. The last prompt token is always
// computed, for its logits.
struct CachedPrompt {
  size_t n_tokens = 0;
  bool complete = false;  // the file holds the whole prompt; no need to write it again
};

CachedPrompt read_prompt_cache(const RunOptions& options, Session& session, std::vector<int32_t>& ids) {
  CachedPrompt cached;
  if (options.prompt_cache.empty() || access(options.prompt_cache.c_str(), F_OK) != 0) return cached;
  const SessionFile file(options.prompt_cache, session);
  const std::vector<int32_t>& tokens = file.tokens();
  if (ids.empty()) ids = tokens;  // without a prompt, continue the cached text
  if (ids.empty()) return cached;
  const auto common = static_cast<size_t>(
      std::mismatch(tokens.begin(), tokens.end(), ids.begin(), ids.end()).first - tokens.begin());
  cached.complete = common == ids.size();
  cached.n_tokens = std::min(common, ids.size() - 1);
  file.restore(session, cached.n_tokens);
  log_info("{}: reusing {} of the prompt's {} tokens", printable(options.prompt_cache, 4096), cached.n_tokens,
           ids.size());
  return cached;
}

// A prompt cache has no transcript, so that writing one over a conversation would lose it.
void refuse_conversation(const RunOptions& options) {
  if (options.prompt_cache.empty() || options.prompt_cache_ro) return;
  if (kind_of(options.prompt_cache) != FileKind::session) return;
  throw_error(
      ErrorCode::usage,
      "{}: holds a conversation of tandem chat, which a prompt cache would replace: use another file, or "
      "--prompt-cache-ro to only read it",
      printable(options.prompt_cache, 4096));
}

// Whether to save the prompt. A cache that cannot be written is no reason to refuse the answer.
bool may_save_cache(const RunOptions& options) {
  if (options.prompt_cache.empty() || options.prompt_cache_ro) return false;
  try {
    check_writable(options.prompt_cache);
    return true;
  } catch (const Error& e) {
    log_warning("{}; the prompt will not be saved", message_of(e));
    return false;
  }
}

// Where the text goes: to stdout, on a terminal without words broken at its edge, or as events.
class TextSink {
 public:
  explicit TextSink(const TextOptions& options) {
    if (options.json) events_.emplace();
    if (!options.json && !options.simple_io && isatty(STDOUT_FILENO) == 1 && !is_dumb_terminal())
      wrap_.emplace(terminal_columns(STDOUT_FILENO));
  }

  void start(const Session& session, const std::string& devices) {
    vocab_ = &session.model().vocab();
    if (events_) events_->start(session.model(), session.n_ctx(), devices);
  }
  void prompt(const std::string& text, bool color) {
    if (events_) return;
    if (color) out_.write("\x1b[33m");
    put(text);
    if (color) out_.write("\x1b[0m");
    if (color && wrap_) wrap_->keep();
    out_.flush();
  }
  void logprobs(const TokenLogprobs& logprobs) { events_->token(*vocab_, logprobs); }
  void text(std::string_view text) {
    if (events_) {
      content_ += text;
      return events_->text(text);
    }
    put(text);
    out_.flush();
  }
  // For programs; people read the log.
  void note(const std::string& text) {
    if (events_) events_->note(text);
  }
  void end_line() {
    if (events_) return;
    out_.write("\n");
    out_.flush();
  }
  void end(const GenerateStats& s, int64_t n_reused, int64_t n_loaded, uint64_t seed,
           const Session& session) {
    end_line();
    if (!events_) return;
    events_->end(s.reason, content_,
                 {{"n_prompt", s.n_prompt},
                  {"n_reused", n_reused},
                  {"n_loaded", n_loaded},
                  {"n_generated", s.n_generated},
                  {"n_shifts", s.n_shifts},
                  {"n_guessed", s.speculation.n_checked},
                  {"n_guessed_right", s.speculation.n_right},
                  {"prompt_s", s.prompt_s},
                  {"generate_s", s.generate_s},
                  {"experts", experts_used_json(s)},
                  {"n_past", session.n_past()},
                  {"n_ctx", session.n_ctx()},
                  {"seed", seed}});
  }

 private:
  void put(std::string_view text) {
    if (!wrap_) return out_.write_text(text);
    wrap_->resize(terminal_columns(STDOUT_FILENO));
    out_.write(wrap_->add(harmless(text)));
  }

  Output out_;
  std::optional<WordWrap> wrap_;
  std::optional<JsonEvents> events_;
  std::string content_;
  const Vocab* vocab_ = nullptr;
};

void report(const GenerateStats& s, uint64_t seed) {
  log_info("prompt {}, {:.1f} t/s; generated {}; stopped: {}; seed {}", n_tokens_text(s.n_prompt),
           tokens_per_second(s.n_prompt, s.prompt_s), answer_speed_text(s.n_generated, s.generate_s),
           reason_text(s.reason), seed);
  const std::string speculation = speculation_text(s.speculation, s.generate_s);
  if (!speculation.empty()) log_info("{}", speculation);
  const std::string experts = experts_used_text(s);
  if (!experts.empty()) log_info("{}", experts);
}

struct Prompt {
  std::string text;
  bool from_cache = false;  // what the prompt cache holds is continued
};

Prompt find_prompt(const RunOptions& options) {
  const bool has_cache = access(options.prompt_cache.c_str(), R_OK) == 0;
  const bool no_prompt = options.text.prompt.empty() && options.text.file.empty();
  TextOptions source = options.text;
  if (no_prompt && !has_cache && isatty(STDIN_FILENO) == 0) source.file = std::string("-");
  Prompt prompt{read_prompt(source)};
  prompt.from_cache = prompt.text.empty() && has_cache;
  if (!prompt.from_cache) check_prompt(prompt.text, options.text);
  return prompt;
}

// From the options to the model's file, with nothing but what the run needs allowed from then on.
void begin_confined(RunOptions& options, Confinement& confinement) {
  find_model_file(options);
  prepare_speculation(options.speculation, options.engine);
  confinement.runs(options.engine).reads_model(options.speculation.model).reads(options.prompt_cache);
  if (!options.prompt_cache_ro) confinement.writes(options.prompt_cache);
  prepare_kv_store(options.kv_store, confinement);
  confinement.writes(options.expert_stats).writes(options.expert_trace).begin();
  refuse_conversation(options);
}

// What a run is made with: of one process, or of the rank that has the terminal.
struct RunModel {
  const Model& model;
  const std::vector<std::unique_ptr<Device>>& devices;
  Session::Explain explain;
  // Called when the session is there, or with why it is not; may be empty.
  std::function<void(const std::optional<Error>& failure)> agree;
};

std::unique_ptr<Session> open_session(const RunOptions& options, const RunModel& r) {
  const auto open = [&] {
    return std::make_unique<Session>(r.model, pointers(r.devices), options.engine, r.explain);
  };
  if (!r.agree) return open();
  std::unique_ptr<Session> session;
  std::optional<Error> failure;
  attempt(failure, [&] { session = open(); });
  r.agree(failure);
  return session;
}

void complete(RunOptions& options, const Prompt& source, const RunModel& r) {
  const std::string& prompt = source.text;
  const bool from_cache = source.from_cache;
  const auto& devices = r.devices;
  const Model* model = &r.model;
  const ExpertStats expert_stats(options.expert_stats, model->hparams(), options.engine);
  ExpertTrace expert_trace(options.expert_trace, model->hparams(), options.engine);
  TextSpeculation speculation(options.speculation, options.engine, devices, *model);
  const std::unique_ptr<BlockStore> store = open_kv_store(options.kv_store);
  const std::unique_ptr<Session> opened = open_session(options, r);
  Session& session = *opened;
  speculation.watch(session);
  if (store) session.keep_in(*store);
  Sampler sampler(options.sampling, sampler_model(session));
  std::vector<int32_t> ids;
  if (!from_cache) ids = model->vocab().tokenize(prompt);
  check_fits(session, ids.size());
  const CachedPrompt cached = read_prompt_cache(options, session, ids);
  if (ids.empty()) throw_error(ErrorCode::usage, "both the prompt and {} are empty", options.prompt_cache);
  check_fits(session, ids.size());
  const int64_t n_reused = session.load_kept(ids);
  const int64_t n_loaded = std::max<int64_t>(0, n_reused - static_cast<int64_t>(cached.n_tokens));
  log_loaded(store.get(), n_loaded, static_cast<int64_t>(ids.size()));
  for (int64_t i = 0; i < n_reused; ++i) sampler.accept_prompt(ids[i]);
  const std::span<const int32_t> rest = std::span<const int32_t>(ids).subspan(n_reused);
  const bool update = may_save_cache(options);

  install_interrupt_handler();
  TextSink out(options.text);
  out.start(session, device_names(devices));
  PromptProgress progress(!options.text.simple_io && !options.text.json);
  const auto show_prompt = [&] {
    if (!options.text.display_prompt) return;
    out.prompt(from_cache ? text_of(model->vocab(), ids) : prompt, color_on(options.text));
  };
  // The answer follows on the prompt's line, so the progress bar has to come first.
  const auto n_rest = static_cast<int64_t>(rest.size());
  const bool prompt_later = progress.shows(n_rest);
  if (!prompt_later) show_prompt();
  GenerateOptions generation;
  generation.n_predict = options.text.n_predict < 0 ? -1 : options.text.n_predict;
  generation.n_keep = options.text.keep;
  generation.exact_shift = options.exact_shift;
  generation.context_shift = options.context_shift && options.text.n_predict != -2;
  generation.stop = options.text.reverse_prompts;
  generation.n_logprobs = options.text.n_logprobs;
  // A cache that cannot be written is no reason to lose the answer either: it ends the program after that.
  std::optional<Error> unsaved;
  const auto save_prompt = [&] {
    try {
      save_session(session, options.prompt_cache);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::io) throw;
      unsaved = e;
    }
  };
  GenerateCallbacks callbacks;
  callbacks.chosen = [&](const Continuation::Choice& choice) {
    if (choice.logprobs) out.logprobs(*choice.logprobs);
  };
  callbacks.text = [&](std::string_view text) { out.text(text); };
  callbacks.prompt_progress = [&](int64_t n_done) {
    progress.update(n_done, n_rest);
    const bool read = n_done == n_rest;
    if (read && prompt_later) show_prompt();
    if (read && update && !options.prompt_cache_all && !cached.complete)
      save_prompt();
  };
  callbacks.interrupted = [] { return interrupted(); };
  GenerateStats stats;
  try {
    stats = generate(session, sampler, rest, generation, callbacks, speculation.get());
    if (update && options.prompt_cache_all) save_prompt();
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error&) {
    progress.clear();
    out.end_line();  // put the error message on its own line
    throw;
  }
  out.end(stats, n_reused, n_loaded, sampler.seed(), session);
  report(stats, sampler.seed());
  session.keep();
  log_store(options.kv_store, store.get());
  expert_stats.save(session.executor());
  expert_trace.publish();
  if (unsaved) throw Error(*unsaved);
  if (stats.reason == StopReason::interrupted) throw Error(ErrorCode::interrupted, "");
  check_complete(options.sampling, stats.reason, [&](const std::string& text) { out.note(text); });
}

// What each rank would have to do for its layers.
void refuse_with_mpi(const RunOptions& options) {
  const auto refuse = [](bool given, const char* flag, const char* why) {
    if (given) throw_error(ErrorCode::usage, "{} contradicts --mpi: {}", flag, why);
  };
  check_stage_options(options.engine);
  const char* parts = "each rank has a part of what would be saved";
  refuse(!options.prompt_cache.empty(), "--prompt-cache", parts);
  refuse(options.kv_store.is_on(), "--kv-store", parts);
  refuse(!options.expert_stats.empty(), "--expert-stats", "it records the experts of one process");
  refuse(!options.expert_trace.empty(), "--expert-trace", "it records the experts of one process");
  refuse(options.speculation.chosen() == SpeculationOptions::Kind::mtp, "--spec mtp",
         "the MTP layer needs what the last rank makes of every token");
}

void run_rank(RunOptions& options, MpiRanks& ranks) {
  const bool leads = ranks.rank() == 0;
  std::optional<Error> failure;
  Prompt prompt;
  Confinement confinement(options.sandbox);
  attempt(failure, [&] {
    refuse_with_mpi(options);
    note_no_effect(options);
    if (leads) prompt = find_prompt(options);
    begin_confined(options, confinement.uses_mpi());
  });
  ranks.start();
  agree(ranks, failure);
  agree_on(ranks, "the version of tandem", build_commit());
  StagedModel staged(ranks, options.stages, options.engine);
  log_info("{} {} ({}): {}", ranks.size(), ranks.size() == 1 ? "rank" : "ranks", ranks.library_version(),
           staged.layers_text());
  std::optional<ExitCode> exit_code;
  if (leads) {
    const auto agree_with_all = [&ranks](const std::optional<Error>& e) { agree(ranks, e); };
    if (options.explain) staged.watch();
    try {
      complete(options, prompt,
               {staged.model(), staged.devices(), staged.explain(options.explain), agree_with_all});
    } catch (const ExitCode& e) {
      exit_code = e;
    }
    staged.pipeline().finish();
  } else {
    staged.follow(options.engine, options.explain);
  }
  const std::string times = staged.times_text();
  if (leads && options.explain) fputs(times.c_str(), stderr);
  if (exit_code) throw ExitCode{*exit_code};
}

void run(RunOptions& options) {
  check_logprobs(options.text);
  if (!options.stages.mpi) {
    apply_log_options(options.log);
    if (!options.stages.layers.empty() || options.stages.compare_files)
      throw_error(ErrorCode::usage, "--rank-layers and --compare-files are for ranks: give --mpi too");
  }
  apply_escapes(options.text, options.sampling);
  validate(options.sampling);
  check_one_model(options.engine.model.path, options.hub);
  if (options.stages.mpi) return run_ranks(options.log, [&](MpiRanks& ranks) { run_rank(options, ranks); });
  note_no_effect(options);
  const Prompt prompt = find_prompt(options);
  Confinement confinement(options.sandbox);
  begin_confined(options, confinement);
  const auto devices = make_devices(options.engine);
  const std::unique_ptr<Model> model = load_model(options);
  measure_speeds(options.engine, devices, *model);
  complete(options, prompt, {*model, devices, explain_on_stderr(options.explain), nullptr});
}

}  // namespace

void add_run(CLI::App& app) {
  CLI::App& command = add_command(app, "run", "complete a prompt and stream the text");
  const auto options = std::make_shared<RunOptions>();
  add_text_options(command, options->text);
  add_model_options(command, *options);
  add_context_options(command, options->engine.context, options->flash_attention);
  flag(command, "--context-shift,!--no-context-shift", options->context_shift,
       "when the context is full, drop the older half (except the --keep tokens) and continue")
      .group("Context");
  flag(command, "--exact-shift", options->exact_shift,
       "after that, compute what remains again, instead of moving its cache to the new positions, which is "
       "much faster "
       "but keeps in it what it had seen of the dropped text")
      .group("Context");
  const char* cache_group = "Prompt cache";
  text(command, "--prompt-cache", options->prompt_cache, "FILE",
       "save the computed prompt here and reuse it the next time; without -p, continue the saved text")
      .group(cache_group);
  flag(command, "--prompt-cache-all", options->prompt_cache_all, "save the generated text too")
      .group(cache_group);
  flag(command, "--prompt-cache-ro", options->prompt_cache_ro, "only read the file, never write it")
      .group(cache_group);
  add_kv_store_options(command, options->kv_store);
  add_thread_options(command, options->engine.devices);
  add_offload_options(command, options->engine, options->explain);
  add_expert_stats_option(command, options->expert_stats);
  add_expert_trace_option(command, options->expert_trace);
  add_sampling_options(command, options->sampling);
  add_speculation_options(command, options->speculation);
  add_stage_options(command, options->stages);
  add_rope_options(command, options->engine.model.rope);
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_callback(command, [options] { run_with_events(options->text.json, [&] { run(*options); }); });
}

}  // namespace tandem::tools
