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

Generation::Generation(Session& session, Sampler& sampler, const GenerateOptions& options,
                       Speculation* speculation)
    : session_(session),
      sampler_(sampler),
      options_(options),
      speculation_(speculation),
      experts_before_(session.expert_counts()) {
  if (speculation_) speculation_before_ = speculation_->stats();
}

bool Generation::read(std::span<const int32_t> prompt, const Session::Progress& progress) {
  const Timer timer(stats_.prompt_s);
  n_keep_ = options_.n_keep < 0 ? session_.n_past() + static_cast<int64_t>(prompt.size()) : options_.n_keep;
  for (const int32_t id : prompt) sampler_.accept_prompt(id);
  text_.emplace(session_.model().vocab(), sampler_, options_, prompt);
  logits_ = session_.append(prompt, text_->wanted(), [&](int64_t n_done) {
    stats_.n_prompt = n_done;
    return !progress || progress(n_done);
  });
  stats_.prompt_experts = session_.expert_counts() - experts_before_;
  return !logits_.empty();
}

Continuation::Choice Generation::next() {
  const Timer timer(stats_.generate_s);
  if (last_) append_last();
  stats_.answer_experts = session_.expert_counts() - (experts_before_ + stats_.prompt_experts);
  Continuation::Choice choice = text_->choose(logits_);
  stats_.n_generated = text_->n_generated();
  last_ = choice.id;
  if (speculation_) speculation_->add_token(choice.id);
  const bool full = n_past() >= session_.n_ctx() && !can_shift();
  if (!choice.end && full) choice.end = StopReason::context_full;
  if (choice.end) {
    stats_.reason = *choice.end;
    if (stats_.reason != StopReason::stop_text) choice.text += text_->finish();
    drop_guesses();
  }
  return choice;
}

std::string Generation::finish() {
  drop_guesses();
  return text_->finish();
}

int64_t Generation::n_past() const {
  return session_.n_past() - static_cast<int64_t>(guesses_.size() - n_used_);
}

void Generation::append_last() {
  if (use_guess()) return;
  drop_guesses();
  if (session_.n_past() >= session_.n_ctx()) shift();
  if (speculation_) {
    append_with_guesses();
  } else {
    logits_ = session_.append(std::span(&*last_, 1), text_->wanted());
  }
  last_.reset();
}

// One step with the last token and guesses of what follows it. At most as many as may still become text.
void Generation::append_with_guesses() {
  const int64_t n_left =
      options_.n_predict < 0 ? session_.n_ctx() : options_.n_predict - text_->n_generated() - 1;
  const int64_t n_again = session_.n_past() - session_.n_cached();
  const int64_t n_most = std::min(session_.max_checked() - 1, n_left);
  const std::span<const int32_t> guesses =
      speculation_->guess(session_.tokens(), *last_, n_most, {n_again + 1, session_.is_recurrent()});
  std::vector<int32_t> tokens{*last_};
  tokens.insert(tokens.end(), guesses.begin(), guesses.end());
  double seconds = 0;
  {
    const Timer timer(seconds);
    if (guesses.empty()) {
      logits_ = session_.append(tokens, text_->wanted());
    } else {
      rows_ = session_.append_all(tokens, text_->wanted());
      logits_ = rows_.row(0);
    }
  }
  speculation_->add_step(n_again + static_cast<int64_t>(tokens.size()), seconds);
  guesses_.assign(guesses.begin(), guesses.end());
  n_used_ = 0;
}

// If the last token was guessed, its logits are there.
bool Generation::use_guess() {
  if (n_used_ == guesses_.size() || guesses_[n_used_] != *last_) return false;
  logits_ = rows_.row(++n_used_);
  last_.reset();
  return true;
}

void Generation::drop_guesses() {
  if (n_used_ < guesses_.size()) session_.truncate(n_past());
  guesses_.clear();
  n_used_ = 0;
  if (!speculation_) return;
  const SpeculationStats now = speculation_->stats();
  stats_.speculation = {now.n_checked - speculation_before_.n_checked,
                        now.n_right - speculation_before_.n_right,
                        now.lost_seconds - speculation_before_.lost_seconds};
}

bool Generation::can_shift() const {
  const int64_t n_keep = std::min(n_keep_, n_past());
  return options_.context_shift && (n_past() - n_keep) / 2 >= 1;
}

// Drops the older half of what is not kept. The rest is moved to its new place, or, where that is not possible or not wanted,
// computed again there.
void Generation::shift() {
  const int64_t n_keep = std::min(n_keep_, session_.n_past());
  const int64_t n_drop = (session_.n_past() - n_keep) / 2;
  ++stats_.n_shifts;
  if (!options_.exact_shift && session_.shift(n_keep, n_drop)) return;
  const std::vector<int32_t> rest(session_.tokens().begin() + n_keep + n_drop, session_.tokens().end());
  session_.truncate(n_keep);
  if (!rest.empty()) session_.append(rest, LogitsWanted::largest);
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
                       const GenerateOptions& options, const GenerateCallbacks& callbacks,
                       Speculation* speculation) {
  const auto is_interrupted = [&] { return callbacks.interrupted && callbacks.interrupted(); };
  const auto emit = [&](const std::string& text) {
    if (!text.empty() && callbacks.text) callbacks.text(text);
  };
  Generation generation(session, sampler, options, speculation);
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
