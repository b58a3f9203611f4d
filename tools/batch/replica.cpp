#include "tools/batch/replica.h"

#include <algorithm>

#include "base/interrupt.h"
#include "base/log.h"
#include "engine/generate.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/batch_context.h"
#include "tools/json_events.h"
#include "tools/options/setting_flags.h"
#include "tools/setup.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

GenerateOptions generation(const TextOptions& text) {
  GenerateOptions g;
  g.n_predict = text.n_predict < 0 ? -1 : text.n_predict;
  g.stop = text.reverse_prompts;
  g.n_logprobs = text.n_logprobs;
  return g;
}

void set_context(BatchOptions& o, const Model& model) {
  ContextOptions& c = o.engine.context;
  c.n_ctx_sequence = o.ctx_sequence;
  set_batch_context(c, o.parallel, model.hparams().n_ctx_usable());
  // A runtime for one sequence may split its cache into hot and cold, which does not work for several
  // sequences in turn.
  c.n_sequences = std::max(o.parallel, 2);
}

}  // namespace

Replica::Replica(BatchOptions& o) : options_(o), devices_(make_devices(o.engine)), model_(load_model(o)) {
  Sampler(o.sampling, sampler_model(*model_, 0));  // report invalid sampling options now, not for each line
  install_interrupt_handler();
  set_context(o, *model_);
  expert_stats_.emplace(o.expert_stats, model_->hparams(), o.engine);
  measure_speeds(o.engine, devices_, *model_);
  runtime_ = std::make_unique<Runtime>(*model_, pointers(devices_), o.engine, explain_on_stderr(o.explain));
  if (runtime_->n_sequences() < o.parallel) {
    log_warning("-np {}: the context of {} tokens has room for {} sequences", o.parallel, runtime_->n_ctx(),
                runtime_->n_sequences());
  }
  store_ = open_kv_store(o.kv_store);
  parser_ = std::make_unique<RequestParser>(*model_, o.sampling, generation(o.text), o.chat_template,
                                            runtime_->n_ctx_sequence(), input_name(o));
  batcher_ = std::make_unique<Batcher>(*runtime_, o.parallel, store_.get());
}

Replica::~Replica() = default;

void Replica::answer(LineQueue& queue) {
  while (!interrupted()) {
    read_lines(queue);
    if (batcher_->n_open() == 0 && at_end_) break;
    batcher_->step([&](BatchAnswer a) { queue.answer(finish(std::move(a))); });
    queue.show_progress(stats().n_generated);
  }
}

// Reads as many lines as the batcher has room for. Waits for a slow queue only if nothing is being computed.
void Replica::read_lines(LineQueue& queue) {
  InputLine line;
  while (!at_end_ && batcher_->has_room() && !interrupted()) {
    const auto wait = batcher_->n_open() > 0 ? LineQueue::Wait::no : LineQueue::Wait::yes;
    const auto result = queue.next(line, wait, batcher_->n_room());
    at_end_ = result == LineQueue::Result::end;
    if (result != LineQueue::Result::line) return;
    begin(line, queue);
  }
}

void Replica::begin(const InputLine& line, LineQueue& queue) {
  Json id;
  try {
    if (line.too_long) {
      throw_error(ErrorCode::bad_file, "longer than {} MiB", LineReader::kMaxBytes >> 20);
    }
    BatchRequest request = parser_->parse(line.index, line.text, id);
    ids_[line.index] = id;
    batcher_->add(std::move(request));
  } catch (const Error& e) {
    const bool of_the_line = e.code() == ErrorCode::bad_file || e.code() == ErrorCode::usage;
    if (!of_the_line) throw;
    ids_[line.index] = id;
    queue.answer(error_answer(line.index, e));
  }
}

Replica::Json Replica::answer_to(int64_t index) {
  Json answer = {{"index", index}};
  if (const auto id = ids_.extract(index); !id.mapped().is_null()) answer["id"] = id.mapped();
  return answer;
}

LineAnswer Replica::finish(BatchAnswer a) {
  if (a.error) return error_answer(a.index, *a.error);
  Json answer = answer_to(a.index);
  answer["text"] = std::move(a.text);
  answer["stop"] = stop_name(a.reason);
  answer["n_prompt"] = a.n_prompt;
  answer["n_generated"] = a.n_generated;
  if (a.logprobs) {
    answer["logprobs"] = Json::array();
    for (const TokenLogprobs& t : *a.logprobs) answer["logprobs"].push_back(token_json(model_->vocab(), t));
  }
  ++n_answered_;
  return {a.index, answer_line(answer), "", a.n_generated};
}

// The error is an answer too, so that a rerun does not try the line again.
LineAnswer Replica::error_answer(int64_t index, const Error& error) {
  const std::string message = message_of(error);
  Json answer = answer_to(index);
  answer["error"] = message;
  ++n_answered_;
  return {index, answer_line(answer), message, 0};
}

void Replica::save() const {
  log_loaded(store_.get(), stats().n_loaded, stats().n_prompt);
  const std::string experts = experts_used_text(runtime_->expert_counts(), stats().n_generated);
  if (!experts.empty()) log_info("experts: {}", experts);
  log_store(options_.kv_store, store_.get());
  expert_stats_->save(runtime_->executor());
}

}  // namespace tandem::tools
