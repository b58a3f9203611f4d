// tandem batch: answers many prompts from a file at once.
#include <sys/stat.h>

#include <memory>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/progress.h"
#include "engine/generate.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/batch_context.h"
#include "tools/batch/input.h"
#include "tools/batch/line_reader.h"
#include "tools/batch/merge.h"
#include "tools/batch/request.h"
#include "tools/batch/shard.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/expert_stats.h"
#include "tools/json_events.h"
#include "tools/kv_store.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/setting_flags.h"
#include "tools/options/types.h"
#include "tools/setup.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr auto kLogInterval = std::chrono::seconds(30);
constexpr int32_t kMaxParallel = 65536;

struct BatchOptions : CommandOptions {
  bool sandbox = true;
  SamplerParams sampling;
  KvStoreOptions kv_store;
  TextOptions text;  // -n, -r, -e
  std::string input = "-", output = "-", chat_template, expert_stats;
  int32_t parallel = 8, ctx_sequence = 0;
  std::optional<Shard> shard;  // nothing: that of a Slurm job array, else the whole input
  bool merge = false;
};

// Counts the lines to answer, if the input is a regular file and can be read twice.
std::optional<int64_t> count_lines(const std::string& path, const std::string& name, const AnswerFile& answers,
                                   const Shard& shard) {
  struct stat info {};
  if (path == "-" || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const BatchInput file(path, name);
  LineReader reader(file.get(), name);
  std::string line;
  int64_t n = 0;
  while (reader.next(line) == LineReader::Result::line)
    n += !is_blank(line) && shard.has(reader.n_lines()) && !answers.has(reader.n_lines());
  return n;
}

// Reads requests, runs them, and writes the answers.
class BatchJob {
 public:
  BatchJob(const BatchOptions& options, Runtime& runtime, BlockStore* store, int input, AnswerFile& answers,
           std::optional<int64_t> n_lines)
      : name_(options.input == "-" ? "stdin" : printable(options.input, 4096)),
        reader_(input, name_),
        answers_(answers),
        runtime_(runtime),
        n_lines_(n_lines),
        shard_(options.shard.value_or(Shard{})),
        parser_(runtime.model(), options.sampling, generation(options.text), options.chat_template,
                runtime.n_ctx_sequence()),
        vocab_(runtime.model().vocab()),
        batcher_(runtime, options.parallel, store),
        store_(store),
        progress_("lines", n_lines.value_or(0)) {}

  void run() {
    while (!interrupted()) {
      read_lines();
      if (batcher_.n_open() == 0 && at_end_) break;
      batcher_.step([this](BatchAnswer answer) { write(std::move(answer)); });
      show_progress();
    }
    progress_.clear();
    status_.clear();
    report();
    if (interrupted()) throw Error(ErrorCode::interrupted, "");
    if (n_bad_ > 0) throw ExitCode{static_cast<int>(ErrorCode::bad_file)};
  }

 private:
  static GenerateOptions generation(const TextOptions& text) {
    GenerateOptions g;
    g.n_predict = text.n_predict < 0 ? -1 : text.n_predict;
    g.stop = text.reverse_prompts;
    g.n_logprobs = text.n_logprobs;
    return g;
  }

  // Reads as many lines as the batcher has room for. Waits for a slow pipe only if nothing is being computed.
  void read_lines() {
    std::string line;
    while (!at_end_ && batcher_.has_room() && !interrupted()) {
      const auto wait = batcher_.n_open() > 0 ? LineReader::Wait::no : LineReader::Wait::yes;
      const LineReader::Result result = reader_.next(line, wait);
      at_end_ = result == LineReader::Result::end;
      if (result != LineReader::Result::line) return;
      if (!reader_.too_long() && is_blank(line)) continue;
      const int64_t index = reader_.n_lines();
      if (!shard_.has(index)) continue;
      if (!answers_.has(index)) {
        begin(index, line);
      } else if (!answers_.is_of(index, id_of(line))) {
        throw_error(ErrorCode::bad_file,
                    "{}: line {} and the existing answer to line {} have different ids: the answers belong "
                    "to another input",
                    name_, index, index);
      }
    }
  }

  void begin(int64_t index, const std::string& line) {
    Json id;
    try {
      if (reader_.too_long()) {
        throw_error(ErrorCode::bad_file, "longer than {} MiB", LineReader::kMaxBytes >> 20);
      }
      BatchRequest request = parser_.parse(index, line, id);
      ids_[index] = id;
      batcher_.add(std::move(request));
    } catch (const Error& e) {
      const bool of_the_line = e.code() == ErrorCode::bad_file || e.code() == ErrorCode::usage;
      if (!of_the_line) throw;
      ids_[index] = id;
      write_error(index, e);
    }
  }

  Json answer_to(int64_t index) {
    Json answer = {{"index", index}};
    if (const auto id = ids_.extract(index); !id.mapped().is_null()) answer["id"] = id.mapped();
    return answer;
  }

  void write(BatchAnswer a) {
    if (a.error) return write_error(a.index, *a.error);
    Json answer = answer_to(a.index);
    answer["text"] = std::move(a.text);
    answer["stop"] = stop_name(a.reason);
    answer["n_prompt"] = a.n_prompt;
    answer["n_generated"] = a.n_generated;
    if (a.logprobs) {
      answer["logprobs"] = Json::array();
      for (const TokenLogprobs& t : *a.logprobs) answer["logprobs"].push_back(token_json(vocab_, t));
    }
    answers_.write(answer);
    ++n_answers_;
  }

  // Reports the error and writes it as an answer, so that a rerun does not try the line again.
  void write_error(int64_t index, const Error& error) {
    const std::string message = message_of(error);
    log_warning("{}: line {}: {}", name_, index, message);
    Json answer = answer_to(index);
    answer["error"] = message;
    answers_.write(answer);
    ++n_bad_;
  }

  double token_rate() const {
    return static_cast<double>(batcher_.stats().n_generated) / std::max(progress_.seconds(), 1e-9);
  }

  void show_progress() {
    const int64_t n_done = n_answers_ + n_bad_;
    const std::string rate = format("{:.0f} tokens/s", token_rate());
    if (n_lines_) {
      progress_.update(n_done, rate);
    } else if (progress_.animated() && Clock::now() - shown_ > std::chrono::milliseconds(100)) {
      shown_ = Clock::now();
      status_.show(format("{} lines, ", n_done) + rate);
    }
    if (progress_.animated() || Clock::now() - logged_ < kLogInterval) return;
    logged_ = Clock::now();
    log_info("{} lines done{}, {}", n_done, n_lines_ ? format(" of {}", *n_lines_).c_str() : "", rate);
  }

  void report() const {
    const BatchStats& s = batcher_.stats();
    const double seconds = std::max(progress_.seconds(), 1e-9);
    const double shared =
        s.n_prompt > 0 ? 100.0 * static_cast<double>(s.n_reused) / static_cast<double>(s.n_prompt) : 0;
    log_info(
        "{} answers{} in {:.1f} s: prompts {} tokens, {:.1f} t/s, {:.0f}% of them shared; generated {} "
        "tokens, {:.1f} t/s",
        n_answers_, n_bad_ > 0 ? format(" and {} bad lines", n_bad_).c_str() : "", seconds, s.n_prompt,
        static_cast<double>(s.n_prompt) / seconds, shared, s.n_generated,
        static_cast<double>(s.n_generated) / seconds);
    log_loaded(store_, s.n_loaded, s.n_prompt);
    const std::string experts = experts_used_text(runtime_.expert_counts(), s.n_generated);
    if (!experts.empty()) log_info("experts: {}", experts);
    if (s.n_preempted > 0) {
      log_info(
          "the cache was full {} times and {} tokens were computed again; use a larger -c or a smaller "
          "-np "
          "for speed",
          s.n_preempted, s.n_recomputed);
    }
    if (interrupted()) {
      log_info("interrupted with {} lines unfinished; rerun the same command to continue", batcher_.n_open());
    }
  }

  std::string name_;
  LineReader reader_;
  AnswerFile& answers_;
  const Runtime& runtime_;
  std::optional<int64_t> n_lines_;
  Shard shard_;
  RequestParser parser_;
  const Vocab& vocab_;
  Batcher batcher_;
  const BlockStore* store_;  // null: nothing is kept
  Progress progress_;
  StatusLine status_;  // if the number of lines is unknown
  Clock::time_point shown_{}, logged_ = Clock::now();
  std::unordered_map<int64_t, Json> ids_;  // of open requests
  bool at_end_ = false;
  int64_t n_answers_ = 0, n_bad_ = 0;
};

void set_context(BatchOptions& o, const Model& model) {
  ContextOptions& c = o.engine.context;
  c.n_ctx_sequence = o.ctx_sequence;
  set_batch_context(c, o.parallel, model.hparams().n_ctx_train);
  // A runtime for one sequence may split its cache into hot and cold, which does not work for several
  // sequences in turn.
  c.n_sequences = std::max(o.parallel, 2);
}

// Chooses the shard, and the file of its answers.
void set_shard(BatchOptions& o) {
  const bool given = o.shard.has_value();
  if (!given) o.shard = slurm_shard(o.output);
  if (o.shard->is_whole()) return;
  o.output = shard_path(o.output, *o.shard);
  log_info("shard {}{}: answers go to {}", o.shard->text(), given ? "" : " of the Slurm job array",
           o.output == "-" ? "stdout" : printable(o.output, 4096));
}

void batch(BatchOptions& o) {
  apply_log_options(o.log);
  if (o.merge) {
    if (o.shard) throw_error(ErrorCode::usage, "--shard answers the lines of a shard, --merge joins all shards: give one");
    return merge_shards(o.input, o.output, o.sandbox);
  }
  if (o.parallel > kMaxParallel) {
    throw_error(ErrorCode::usage, "--parallel: found {}, needed at most {}", o.parallel, kMaxParallel);
  }
  if (o.engine.offload.kv_split) {
    throw_error(ErrorCode::usage,
                "--kv-split divides the cache of one conversation, but tandem batch runs many");
  }
  apply_escapes(o.text, o.sampling);
  note_no_effect(o);
  find_model_file(o);
  const std::string name = o.input == "-" ? "stdin" : printable(o.input, 4096);
  const BatchInput input(o.input, name);
  set_shard(o);
  AnswerFile answers(o.output, *o.shard);
  const std::optional<int64_t> n_lines = count_lines(o.input, name, answers, *o.shard);
  if (answers.n_done() > 0) {
    log_info("{}: {} lines already done{}", printable(o.output, 4096), answers.n_done(),
             answers.n_errors() > 0 ? format(", {} of them with an error", answers.n_errors()).c_str() : "");
  }
  Confinement confinement(o.sandbox);
  prepare_kv_store(o.kv_store, confinement);
  confinement.runs(o.engine).reads(o.chat_template).writes(o.expert_stats).begin();
  const auto devices = make_devices(o.engine);
  const std::unique_ptr<Model> model = load_model(o);
  Sampler(o.sampling, sampler_model(*model, 0));  // report invalid sampling options now, not for each line
  install_interrupt_handler();
  set_context(o, *model);
  const ExpertStats expert_stats(o.expert_stats, model->hparams(), o.engine);
  measure_speeds(o.engine, devices, *model);
  Runtime runtime(*model, pointers(devices), o.engine, explain_on_stderr(o.explain));
  if (runtime.n_sequences() < o.parallel) {
    log_warning("-np {}: the context of {} tokens has room for {} sequences", o.parallel, runtime.n_ctx(),
                runtime.n_sequences());
  }
  const std::unique_ptr<BlockStore> store = open_kv_store(o.kv_store);
  BatchJob(o, runtime, store.get(), input.get(), answers, n_lines).run();
  log_store(o.kv_store, store.get());
  expert_stats.save(runtime.executor());
}

void add_batch_options(CLI::App& app, BatchOptions& o) {
  const char* group = "Input and output";
  text(app, "-i,--input", o.input, "FILE",
       "read prompts from this file, one JSON object per line; - for stdin")
      .group(group);
  text(app, "-o,--output", o.output, "FILE",
       "write answers to this file, one JSON object per line; keep the answers it already has; - for stdout")
      .group(group);
  choice(app, "--shard", "I/N",
         "answer only each N-th line, from line I on, into a file of its own, such as answers-00003-of-00008.jsonl; off: "
         "all lines",
         "that of a task of a Slurm job array, else off",
         [&o](const std::string& value) { o.shard = parse_shard("--shard", value); })
      .group(group);
  flag(app, "--merge", o.merge,
       "join the shards beside the output into it, in the order of the input; names those that are incomplete")
      .group(group);
  integer(app, "--parallel", o.parallel, 1, "number of prompts to answer at once").group(group);
  integer(app, "-n,--n-predict,--predict", o.text.n_predict, -2, "maximum tokens per answer, -1: no limit")
      .group(group);
  integer(app, "--logprobs", o.text.n_logprobs, -1,
          "add to each answer its tokens' log probabilities and the N most likely tokens, -1: off")
      .group(group);
  repeated(app, "-r,--reverse-prompt", "TEXT", "end an answer before this text; repeatable",
           [&o](const std::vector<std::string>& values) { o.text.reverse_prompts = values; })
      .group(group);
  flag(app, "-e,--escape,!--no-escape", o.text.escape,
       "interpret \\n, \\t, \\\\, \\\", \\', \\xNN in -r (default: on)")
      .group(group);
  text(app, "--chat-template,--chat-template-file", o.chat_template, "NAME|FILE",
       "replace the model's chat template for \"messages\", as in tandem chat")
      .group(group);
}

constexpr const char* kFooter =
    "Input lines: {\"prompt\": TEXT} or {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, with an\n"
    "optional \"id\" and options for this line: n_predict (or max_tokens), temperature, top_k, top_p, "
    "min_p,\n"
    "typical_p, repeat_penalty, presence_penalty, frequency_penalty, seed, stop, grammar, json_schema,\n"
    "logprobs (N: the answer's \"logprobs\" lists each token with the N most likely ones).\n"
    "Empty lines are skipped. With --seed N, line L uses the seed N + L - 1.\n"
    "Output lines, in order of completion: {\"index\": line number from 1, \"id\", \"text\", \"stop\":\n"
    "eos|limit|stop|context, \"n_prompt\", \"n_generated\"}, or {\"index\", \"id\", \"error\"} for an "
    "invalid\n"
    "line, which also makes the exit code 3.\n"
    "If interrupted, rerun the same command: finished answers are kept. To have a line answered again, for\n"
    "example after an error, delete it from the output.\n"
    "Example: tandem batch -m model.gguf -i prompts.jsonl -o answers.jsonl -np 16\n"
    "On several machines: the same with --shard 1/4, 2/4, 3/4 and 4/4, then\n"
    "tandem batch --merge -i prompts.jsonl -o answers.jsonl";

}  // namespace

void add_batch(CLI::App& app) {
  CLI::App& command = add_command(app, "batch", "answer many prompts from a file at once");
  const auto options = std::make_shared<BatchOptions>();
  add_batch_options(command, *options);
  add_model_options(command, *options);
  add_context_options(command, options->engine.context, options->flash_attention);
  integer(command, "--ctx-sequence", options->ctx_sequence, 0,
          "context of one prompt and its answer, 0: the model's training context; -c is for all together, 0: "
          "2048 tokens each")
      .group("Context");
  add_kv_store_options(command, options->kv_store);
  add_thread_options(command, options->engine.devices);
  add_offload_options(command, options->engine, options->explain);
  add_expert_stats_option(command, options->expert_stats);
  add_sampling_options(command, options->sampling);
  add_rope_options(command, options->engine.model.rope);
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_footer(command, kFooter);
  set_callback(command, [options] { batch(*options); });
}

}  // namespace tandem::tools
