#include "engine/model_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tandem {

Guess most_likely(std::span<const float> logits) {
  const auto best = std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit - *best));
  const auto confidence = static_cast<int>(kConfidences / sum);
  return {static_cast<int32_t>(best - logits.begin()), std::min(confidence, kConfidences - 1)};
}

double likelihood(int confidence) {
  return (confidence + 0.5) / kConfidences;
}

void check_same_vocabulary(const Model& draft, const Model& model) {
  const Vocab &a = draft.vocab(), &b = model.vocab();
  const auto differ = [&](const std::string& how) {
    throw_error(ErrorCode::usage, "{}: cannot guess for {}: {}", printable(draft.path(), 4096),
                printable(model.path(), 4096), how);
  };
  const int32_t n = std::min(a.size(), b.size());
  for (int32_t id = 0; id < n; ++id) {
    if (a.token(id).text != b.token(id).text)
      differ(format("token {} is {} in one and {} in the other", id, printable(a.token(id).text),
                    printable(b.token(id).text)));
  }
  if (a.add_bos() != b.add_bos()) differ("only one of them begins texts with a token of its own");
}

void ModelDrafter::draft(std::span<const int32_t> text, const std::function<bool(const Guess&)>& take) {
  if (static_cast<int64_t>(text.size()) > session_.n_ctx()) return;
  const int64_t n_draft_vocab = session_.model().hparams().n_vocab;
  if (std::ranges::any_of(text, [&](int32_t id) { return id >= n_draft_vocab; })) return;
  const std::span<const int32_t> held = session_.tokens();
  const auto n_same =
      std::mismatch(held.begin(), held.end(), text.begin(), text.end() - 1).first - held.begin();
  session_.truncate(n_same);
  std::span<const float> logits = session_.append(text.subspan(static_cast<size_t>(n_same)));
  for (;;) {
    const Guess guess = most_likely(logits);
    if (guess.id >= n_vocab_ || !take(guess) || session_.n_past() >= session_.n_ctx()) return;
    logits = session_.append(std::span(&guess.id, 1));
  }
}

}  // namespace tandem
