#include "engine/generate.h"

#include <algorithm>
#include <chrono>

#include "text/stream_detokenizer.h"

namespace tandem {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Watches the text for the first of some strings, however the tokens cut it.
class StopWatch {
 public:
  explicit StopWatch(const std::vector<std::string>& stops) : stops_(stops) {
    for (const std::string& s : stops_) longest_ = std::max(longest_, s.size());
  }

  // True when the text so far, with `piece` added, has one of the strings in its new part.
  bool add(std::string_view piece) {
    if (longest_ == 0) return false;
    tail_ += piece;
    const bool found = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& s) {
      return !s.empty() && tail_.find(s) != std::string::npos;
    });
    if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
    return found;
  }

 private:
  const std::vector<std::string>& stops_;
  size_t longest_ = 0;
  std::string tail_;
};

class Generation {
 public:
  Generation(Session& session, Sampler& sampler, std::span<const int32_t> prompt, const GenerateOptions& options,
             const GenerateCallbacks& callbacks)
      : session_(session), sampler_(sampler), prompt_(prompt), options_(options), callbacks_(callbacks) {}

  GenerateStats run() {
    const Clock::time_point start = Clock::now();
    n_keep_ = options_.n_keep < 0 ? session_.n_past() + static_cast<int64_t>(prompt_.size()) : options_.n_keep;
    for (int32_t id : prompt_) sampler_.accept_prompt(id);
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
    const Vocab& vocab = session_.model().vocab();
    StreamDetokenizer detokenizer(vocab);
    StopWatch watch(options_.stop);
    // The prompt decides whether the first piece starts a text.
    for (int32_t id : prompt_) detokenizer.add(id);
    const auto end = [&](StopReason reason) {
      emit(detokenizer.finish());
      return reason;
    };
    for (;;) {
      if (options_.n_predict >= 0 && stats_.n_generated >= options_.n_predict) return end(StopReason::limit);
      if (is_interrupted()) return end(StopReason::interrupted);
      if (sampler_.is_finished()) return end(StopReason::end_of_generation);
      const int32_t id = sampler_.sample(logits);
      sampler_.accept(id);
      ++stats_.n_generated;
      if (vocab.is_eog(id)) return end(StopReason::end_of_generation);
      const std::string text = detokenizer.add(id);
      emit(text);
      if (watch.add(text)) return StopReason::stop_text;
      if (sampler_.is_finished()) return end(StopReason::end_of_generation);
      // The last token's logits would not be used.
      if (options_.n_predict >= 0 && stats_.n_generated >= options_.n_predict) return end(StopReason::limit);
      if (session_.n_past() >= session_.n_ctx() && !(options_.context_shift && shift())) {
        return end(StopReason::context_full);
      }
      logits = session_.append(std::span(&id, 1));
    }
  }

  // Drops the older half of what is not kept and reads the rest again at its new place: exact, where moving the
  // cached keys would leave in them what they saw of the dropped tokens.
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

GenerateStats generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerateOptions& options, const GenerateCallbacks& callbacks) {
  return Generation(session, sampler, prompt, options, callbacks).run();
}

}  // namespace tandem
