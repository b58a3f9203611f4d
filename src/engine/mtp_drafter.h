// Guesses by the model's own MTP layer (multi-token prediction, arXiv:2412.19437): a layer that was trained with the model
// to tell the token after the next from the next one and from what the model made of the token before. It is a small
// model of its own here, loaded from the same file (ModelPart::mtp), with a session and a placement.
//
// Its row for position p joins hidden(p) and token p + 1. Of the model's steps it keeps what it has not yet used, and
// computes it when a guess is wanted, or in whole micro-batches. For guesses after the first, its own result stands in for
// what the model has not computed.
#pragma once

#include <vector>

#include "engine/session.h"
#include "speculate/drafter.h"

namespace tandem {

class MtpDrafter final : public Drafter {
 public:
  // `session` is of the MTP part of the model that checks, and keeps hidden; it outlives this and nobody else uses it.
  explicit MtpDrafter(Session& session) : session_(session) {}

  // A step of the model that checks: a Session::HiddenFn. A position that was there before replaces what followed it.
  void add_step(int64_t first, std::span<const int32_t> tokens, std::span<const float> hidden);

  // Guesses nothing unless the model's last step ended with the text's last token but one.
  void draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) override;
  bool is_free() const override { return false; }
  double prior(int confidence) const override;

 private:
  void cut_rows(size_t n);
  void compute(std::span<const int32_t> next);

  Session& session_;
  std::vector<int64_t> positions_;  // of the session's rows, without those of guesses
  // What the session has not yet computed, from position first_ on.
  int64_t first_ = 0;
  std::vector<int32_t> tokens_;
  std::vector<float> hidden_;  // [tokens, n_embd]
  std::span<const float> logits_;
};

}  // namespace tandem
