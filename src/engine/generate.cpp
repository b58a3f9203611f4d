#include "engine/generate.h"

#include <algorithm>
#include <chrono>

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Generation {
 public:
  Generation(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
             const GenerateOptions& options, const GenerateCallbacks& callbacks)
      : session_(session), sampler_(sampler), prompt_(prompt), options_(options), callbacks_(callbacks) {}

  GenerateStats run() {
    const Clock::time_point start = Clock::now();
    n_keep_ =
        options_.n_keep < 0 ? session_.n_past() + static_cast<int64_t>(prompt_.size()) : options_.n_keep;
    for (int32_t id : prompt_) sampler_.accept_prompt(id);
    if (callbacks_.prompt_progress) callbacks_.prompt_progress(0);
    std::span<const float> logits = session_.append(prompt_, [&](int64_t n_done) {
      stats_.n_prompt = n_done;
      if (callbacks_.prompt_progress) callbacks_.prompt_progress(n_done);
      return !is_interrupted();
    });
    stats_.prompt_s = seconds_since(start);
    const Clock::time_point generation_start = Clock::now();
    stats_.reason = logits.empty() ? StopReason::interrupted : loop(logits);
    stats_.generate_s = seconds_since(generation_start);
    return stats_;
  }

 private:
  bool is_interrupted() const { return callbacks_.interrupted && callbacks_.interrupted(); }

  void emit(const std::string& text) const {
    if (!text.empty() && callbacks_.text) callbacks_.text(text);
  }

  StopReason loop(std::span<const float> logits) {
    Continuation text(session_.model().vocab(), sampler_, options_, prompt_);
    const auto end = [&](StopReason reason) {
      if (reason != StopReason::stop_text) emit(text.finish());
      return reason;
    };
    if (const auto reason = text.ended()) return end(*reason);
    for (;;) {
      if (is_interrupted()) return end(StopReason::interrupted);
      const Continuation::Choice next = text.choose(logits);
      stats_.n_generated = text.n_generated();
      if (next.in_text && callbacks_.token) callbacks_.token(next.id);
      emit(next.text);
      if (next.end) return end(*next.end);
      if (session_.n_past() >= session_.n_ctx() && !(options_.context_shift && shift())) {
        return end(StopReason::context_full);
      }
      logits = session_.append(std::span(&next.id, 1));
    }
  }

  // Drops the older half of what is not kept and reads the rest again at its new place: exact, where moving
  // the cached keys would leave in them what they saw of the dropped tokens.
  bool shift() {
    const int64_t n_past = session_.n_past();
    const int64_t n_keep = std::min(n_keep_, n_past);
    const int64_t n_drop = (n_past - n_keep) / 2;
    if (n_drop < 1) return false;
    const std::vector<int32_t> rest(session_.tokens().begin() + n_keep + n_drop, session_.tokens().end());
    session_.truncate(n_keep);
    if (!rest.empty()) session_.append(rest);
    ++stats_.n_shifts;
    return true;
  }

  Session& session_;
  Sampler& sampler_;
  std::span<const int32_t> prompt_;
  const GenerateOptions& options_;
  const GenerateCallbacks& callbacks_;
  int64_t n_keep_ = 0;
  GenerateStats stats_;
};

}  // namespace

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
  return Generation(session, sampler, prompt, options, callbacks).run();
}

}  // namespace tandem
