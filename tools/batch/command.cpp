// tandem batch: answers many prompts from a file at once.
#include <unistd.h>

#include <memory>

#include "base/interrupt.h"
#include "base/log.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/file_queue.h"
#include "tools/batch/input.h"
#include "tools/batch/merge.h"
#include "tools/batch/options.h"
#include "tools/batch/ranks.h"
#include "tools/batch/replica.h"
#include "tools/batch/shard.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/expert_stats.h"
#include "tools/kv_store.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/types.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

constexpr int32_t kMaxParallel = 65536;

// Chooses the shard, and the file of its answers.
void set_shard(BatchOptions& o) {
  const bool given = o.shard.has_value();
  if (!given) o.shard = slurm_shard(o.output);
  if (o.shard->is_whole()) return;
  o.output = shard_path(o.output, *o.shard);
  log_info("shard {}{}: answers go to {}", o.shard->text(), given ? "" : " of the Slurm job array",
           o.output == "-" ? "stdout" : printable(o.output, 4096));
}

void check_options(const BatchOptions& o) {
  if (o.parallel > kMaxParallel) {
    throw_error(ErrorCode::usage, "--parallel: found {}, needed at most {}", o.parallel, kMaxParallel);
  }
  if (o.engine.offload.kv_split) {
    throw_error(ErrorCode::usage,
                "--kv-split divides the cache of one conversation, but tandem batch runs many");
  }
  if (o.mpi) check_rank_options(o);
}

void batch(BatchOptions& o) {
  if (!o.mpi) apply_log_options(o.log);
  if (o.merge) {
    if (o.shard)
      throw_error(ErrorCode::usage,
                  "--shard answers the lines of a shard, --merge joins all shards: give one");
    if (o.mpi)
      throw_error(ErrorCode::usage, "--merge joins the answers of shards in one process: leave out --mpi");
    return merge_shards(o.input, o.output, o.sandbox);
  }
  check_options(o);
  apply_escapes(o.text, o.sampling);
  if (o.mpi) return batch_of_ranks(o);
  note_no_effect(o);
  find_model_file(o);
  const BatchInput input(o.input, input_name(o));
  set_shard(o);
  AnswerFile answers(o.output, *o.shard);
  FileQueue queue(o, input.get(), answers);
  answers.log_done();
  Confinement confinement(o.sandbox);
  prepare_kv_store(o.kv_store, confinement);
  confinement.runs(o.engine).reads(o.chat_template).writes(o.expert_stats).begin();
  Replica replica(o);
  if (o.input == "-" && isatty(STDIN_FILENO) == 1)
    log_info("reading prompts from the terminal, a JSON object on each line, such as {}; Ctrl-D ends", R"({"prompt": "Hello"})");
  queue.start();
  replica.answer(queue);
  queue.report(replica.stats(), replica.n_open());
  replica.save();
  if (interrupted()) throw Error(ErrorCode::interrupted, "");
  if (queue.n_bad() > 0) throw ExitCode{static_cast<int>(ErrorCode::bad_file)};
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
         "answer only each N-th line, from line I on, into a file of its own, such as "
         "answers-00003-of-00008.jsonl; off: "
         "all lines",
         "that of a task of a Slurm job array, else off",
         [&o](const std::string& value) { o.shard = parse_shard("--shard", value); })
      .group(group);
  flag(
      app, "--merge", o.merge,
      "join the shards beside the output into it, in the order of the input; names those that are incomplete")
      .group(group);
  flag(app, "--mpi", o.mpi,
       "answer the lines with all ranks that mpirun or srun has started; rank 0 reads the input and writes "
       "the output")
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
    "tandem batch --merge -i prompts.jsonl -o answers.jsonl\n"
    "Or with MPI: mpirun -np 4 tandem batch --mpi -m model.gguf -i prompts.jsonl -o answers.jsonl";

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
