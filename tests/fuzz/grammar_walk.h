// Generates a text by a grammar, for the targets that make grammars: it must match the grammar.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "sample/grammar/filter.h"

namespace tandem::fuzz {

// Every byte, some longer tokens, and an end.
inline std::shared_ptr<const TokenTrie> small_trie() {
  static const auto made = std::make_shared<const TokenTrie>(
      262,
      [](int32_t id) -> std::string {
        static const char* const longer[] = {"{\"", "\": ", "ab", "\xc3\xa9", "\xe4\xb8", ""};
        return id < 256 ? std::string(1, static_cast<char>(id)) : longer[id - 256];
      },
      std::span<const int32_t>());
  return made;
}

// Walks through the grammar; `choices` choose the tokens. Large grammars work too, but are slow under the
// sanitizers, so they are left out.
inline void walk(const std::shared_ptr<const Grammar>& grammar, std::string_view choices) {
  if (grammar->states().size() >= 20000) return;
  GrammarFilter filter(grammar, small_trie(), {261});
  std::string text;
  size_t n = 0;
  for (; n < 24 && !filter.is_finished(); ++n) {
    std::vector<float> logits(262, 0.0f);
    TANDEM_CHECK(filter.apply(logits));  // every byte is a token, so some token is always allowed
    size_t token = static_cast<uint8_t>(choices.empty() ? n : choices[n % choices.size()]) + n * 7;
    while (logits[token % logits.size()] != 0.0f) ++token;
    token %= logits.size();
    TANDEM_CHECK(filter.allows(static_cast<int32_t>(token)));
    if (token == 261) TANDEM_CHECK(filter.is_complete());
    filter.accept(static_cast<int32_t>(token));
    text += small_trie()->text(static_cast<int32_t>(token));
  }
  GrammarStates states(grammar);
  uint32_t state = states.start();
  for (const char c : text) state = states.advance(state, static_cast<uint8_t>(c));
  TANDEM_CHECK(state != GrammarStates::kDead);
  if (n < 24) TANDEM_CHECK(states.is_complete(state));
}

}  // namespace tandem::fuzz
