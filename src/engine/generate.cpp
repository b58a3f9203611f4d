#include "engine/generate.h"

#include <algorithm>
#include <chrono>

namespace tandem {
namespace {

// Adds the time of a scope to `seconds`.
class Timer {
 public:
  explicit Timer(double& seconds) : seconds_(seconds) {}
  ~Timer() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace

bool Generation::read(std::span<const int32_t> prompt, const Session::Progress& progress) {
  const Timer timer(stats_.prompt_s);
  n_keep_ = options_.n_keep < 0 ? session_.n_past() + static_cast<int64_t>(prompt.size()) : options_.n_keep;
  for (const int32_t id : prompt) sampler_.accept_prompt(id);
  text_.emplace(session_.model().vocab(), sampler_, options_, prompt);
  logits_ = session_.append(prompt, [&](int64_t n_done) {
    stats_.n_prompt = n_done;
    return !progress || progress(n_done);
  });
  return !logits_.empty();
}

Continuation::Choice Generation::next() {
  const Timer timer(stats_.generate_s);
  if (last_) append_last();
  Continuation::Choice choice = text_->choose(logits_);
  stats_.n_generated = text_->n_generated();
  last_ = choice.id;
  const bool full = session_.n_past() >= session_.n_ctx() && !can_shift();
  if (!choice.end && full) choice.end = StopReason::context_full;
  if (choice.end) {
    stats_.reason = *choice.end;
    if (stats_.reason != StopReason::stop_text) choice.text += text_->finish();
  }
  return choice;
}

void Generation::append_last() {
  if (session_.n_past() >= session_.n_ctx()) shift();
  logits_ = session_.append(std::span(&*last_, 1));
  last_.reset();
}

bool Generation::can_shift() const {
  const int64_t n_past = session_.n_past();
  return options_.context_shift && (n_past - std::min(n_keep_, n_past)) / 2 >= 1;
}

// Drops the older half of what is not kept and reads the rest again at its new place: exact, where moving
// the cached keys would leave in them what they saw of the dropped tokens.
void Generation::shift() {
  const int64_t n_keep = std::min(n_keep_, session_.n_past());
  const int64_t n_drop = (session_.n_past() - n_keep) / 2;
  const std::vector<int32_t> rest(session_.tokens().begin() + n_keep + n_drop, session_.tokens().end());
  session_.truncate(n_keep);
  if (!rest.empty()) session_.append(rest);
  ++stats_.n_shifts;
}

SamplerModel sampler_model(const Model& model, int64_t n_ctx) {
  const Vocab& vocab = model.vocab();
  SamplerModel m;
  m.n_vocab = static_cast<int32_t>(model.hparams().n_vocab);
  m.n_ctx = static_cast<int32_t>(n_ctx);
  m.eog.assign(vocab.eog_ids().begin(), vocab.eog_ids().end());
  m.piece = [&vocab](int32_t id) { return id < vocab.size() ? vocab.token_to_piece(id) : std::string(); };
  return m;
}

SamplerModel sampler_model(const Session& session) {
  return sampler_model(session.model(), session.n_ctx());
}

GenerateStats generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  const auto is_interrupted = [&] { return callbacks.interrupted && callbacks.interrupted(); };
  const auto emit = [&](const std::string& text) {
    if (!text.empty() && callbacks.text) callbacks.text(text);
  };
  Generation generation(session, sampler, options);
  const auto stop = [&](StopReason reason) {
    emit(generation.finish());
    GenerateStats stats = generation.stats();
    stats.reason = reason;
    return stats;
  };
  if (callbacks.prompt_progress) callbacks.prompt_progress(0);
  const bool complete = generation.read(prompt, [&](int64_t n_done) {
    if (callbacks.prompt_progress) callbacks.prompt_progress(n_done);
    return !is_interrupted();
  });
  if (!complete) return stop(StopReason::interrupted);
  if (const auto reason = generation.ended()) return stop(*reason);
  for (;;) {
    if (is_interrupted()) return stop(StopReason::interrupted);
    const Continuation::Choice choice = generation.next();
    if (choice.in_text && callbacks.token) callbacks.token(choice.id);
    if (callbacks.chosen) callbacks.chosen(choice);
    emit(choice.text);
    if (choice.end) return generation.stats();
  }
}

}  // namespace tandem
