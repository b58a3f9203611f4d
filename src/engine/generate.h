// Generation: prompt in, text out, one token after the other, until something says stop.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "engine/continuation.h"
#include "engine/session.h"
#include "speculate/speculation.h"

namespace tandem {

struct GenerateStats {
  StopReason reason = StopReason::limit;
  int64_t n_prompt = 0, n_generated = 0, n_shifts = 0;
  double prompt_s = 0, generate_s = 0;  // reading the prompt; choosing tokens and computing what follows
  SpeculationStats speculation;         // of this generation
  // Experts on disk or kept on GPUs that the prompt and the tokens after it used.
  ExpertCounts prompt_experts, answer_experts;
};

// Called while it runs. All optional.
struct GenerateCallbacks {
  std::function<void(int32_t id)> token;  // each chosen token, except the one that ends the text
  std::function<void(const Continuation::Choice&)>
      chosen;                                           // each chosen token, the one that ends the text too
  std::function<void(std::string_view text)> text;      // whole UTF-8 characters, as they come
  std::function<void(int64_t n_done)> prompt_progress;  // tokens of the prompt done so far, from 0
  std::function<bool()> interrupted;                    // true: finish the token and stop
};

// The part of a model that a sampler needs.
SamplerModel sampler_model(const Model& model, int64_t n_ctx);
SamplerModel sampler_model(const Session& session);

// Appends the prompt's tokens to `session`, then the tokens that the sampler chooses. The sampler has
// accepted the tokens that the session holds already; the prompt is accepted here. With `speculation`, steps check
// its guesses too, as far as the session has room for them (ContextOptions::n_draft). Throws what Session and
// Sampler throw.
GenerateStats generate(Session& session, Sampler& sampler, std::span<const int32_t> prompt,
                       const GenerateOptions& options, const GenerateCallbacks& callbacks,
                       Speculation* speculation = nullptr);

// The same token by token: read(), then next() until it returns an end. Session, sampler, options and speculation
// outlive it, and nobody else uses the session meanwhile: it may hold guesses.
class Generation {
 public:
  Generation(Session& session, Sampler& sampler, const GenerateOptions& options,
             Speculation* speculation = nullptr);
  ~Generation() { drop_guesses(); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Appends the prompt's tokens. `progress` as in Session::append; returns false if it stopped the prompt.
  bool read(std::span<const int32_t> prompt, const Session::Progress& progress = nullptr);
  // The reason to choose no token at all, if there is one.
  std::optional<StopReason> ended() const { return text_->ended(); }
  // Chooses the next token. The last one, whose `end` says why, brings the rest of the text.
  Continuation::Choice next();
  // The tokens of prompt and text that the session holds; what it holds beyond them are guesses.
  int64_t n_past() const;
  // The rest of the text of a generation that stops here.
  std::string finish();

  // `reason` is the last token's.
  const GenerateStats& stats() const { return stats_; }

 private:
  bool can_shift() const;
  void shift();
  void append_last();
  void append_with_guesses();
  bool use_guess();
  void drop_guesses();

  Session& session_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  std::optional<Continuation> text_;
  TokenLogits logits_;
  std::optional<int32_t> last_;  // chosen, not yet in the session but perhaps as a guess
  Speculation* speculation_;
  // The last tokens of the session are guesses, of which the first n_used_ were right; and the logits of the token
  // before them and of each.
  std::vector<int32_t> guesses_;
  size_t n_used_ = 0;
  StepLogits rows_;
  SpeculationStats speculation_before_;
  ExpertCounts experts_before_;
  int64_t n_keep_ = 0;
  GenerateStats stats_;
};

}  // namespace tandem
