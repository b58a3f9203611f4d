// Continuation: one text while it is generated. It chooses token after token, makes text of them, and says
// when the text ends. What computes the logits is no concern of it, so a conversation and a batch of prompts
// end alike.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "exec/executor.h"
#include "sample/logprobs.h"
#include "sample/sampler.h"
#include "text/stream_detokenizer.h"

namespace tandem {

struct GenerateOptions {
  int64_t n_predict = -1;      // tokens at most; -1: no limit
  int64_t n_keep = 0;          // tokens of the prompt that a context shift keeps; -1: all of it
  bool context_shift = false;  // when the context is full: drop the older half of what is not kept, and go on
  bool exact_shift = false;  // a shift computes the rest again instead of moving its cached keys
  std::vector<std::string> stop;              // stop after one of these texts
  SpecialText special = SpecialText::hidden;  // what control tokens look like in the text
  int32_t n_logprobs = -1;  // log probabilities of each token and of the N most likely; -1: none
};

enum class StopReason { end_of_generation, limit, context_full, stop_text, interrupted };

class Continuation {
 public:
  // The sampler has accepted the prompt. Vocabulary, sampler and options outlive this. The prompt decides
  // whether the first piece starts a text.
  Continuation(const Vocab& vocab, Sampler& sampler, const GenerateOptions& options,
               std::span<const int32_t> prompt);

  // The reason to choose no more tokens, if there is one.
  std::optional<StopReason> ended() const;

  struct Choice {
    int32_t id = 0;
    std::string text;                                      // whole characters that it completes
    std::optional<StopReason> end;                         // it is the last one
    bool in_text = true;                                   // false: it only says that the text ends
    std::optional<TokenLogprobs> logprobs = std::nullopt;  // if the options ask for them
  };
  // What of the logits to compute for the next token. If only the largest are there, it may ask for all nevertheless.
  LogitsWanted wanted() const;
  // Chooses the next token. Throws what the sampler throws.
  Choice choose(const TokenLogits& logits);
  // Returns the rest of the text, if it ends for another reason than stop_text.
  std::string finish() { return detokenizer_.finish(); }

  int64_t n_generated() const { return n_generated_; }

 private:
  bool stops_with(std::string_view piece);

  const Vocab& vocab_;
  Sampler& sampler_;
  const GenerateOptions& options_;
  StreamDetokenizer detokenizer_;
  int64_t n_generated_ = 0;
  size_t longest_stop_ = 0;
  std::string tail_;  // of the text, as long as a stop text may have begun in it
};

}  // namespace tandem
