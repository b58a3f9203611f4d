// Feeds arbitrary bytes to the parsers of grammars and of JSON schemas, and runs the automaton of accepted
// grammars. Nothing may crash or take long, only Error may be thrown, and a generated text must match the
// grammar.
//
// The first byte selects the kind of the rest: a schema or a grammar.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "sample/grammar/filter.h"
#include "sample/json_schema/json_schema.h"

namespace tandem {
namespace {

// Every byte, some longer tokens, and an end.
std::shared_ptr<const TokenTrie> trie() {
  static const auto made = std::make_shared<const TokenTrie>(
      262,
      [](int32_t id) -> std::string {
        static const char* const longer[] = {"{\"", "\": ", "ab", "\xc3\xa9", "\xe4\xb8", ""};
        return id < 256 ? std::string(1, static_cast<char>(id)) : longer[id - 256];
      },
      std::span<const int32_t>());
  return made;
}

// Walks through the grammar; the bytes of the input choose the tokens.
void generate(const std::shared_ptr<const Grammar>& grammar, std::string_view choices) {
  GrammarFilter filter(grammar, trie(), {261});
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
    text += trie()->text(static_cast<int32_t>(token));
  }
  GrammarStates states(grammar);
  uint32_t state = states.start();
  for (const char c : text) state = states.advance(state, static_cast<uint8_t>(c));
  TANDEM_CHECK(state != GrammarStates::kDead);
  if (n < 24) TANDEM_CHECK(states.is_complete(state));
}

void check(std::string_view text, bool is_schema) {
  std::string gbnf(text);
  try {
    if (is_schema) gbnf = json_schema_to_gbnf(text);
  } catch (const Error&) {
    return;
  }
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = Grammar::parse(gbnf);
  } catch (const Error& e) {
    // A translated schema is valid GBNF, except for endless loops and excessive sizes.
    const std::string_view message = e.what();
    const bool expected =
        message.find("left recursion") != message.npos || message.find("has no end") != message.npos ||
        message.find("more than") != message.npos || message.find("nested deeper") != message.npos;
    TANDEM_CHECK(!is_schema || expected);
    return;
  }
  // Larger ones work too, but are slow under the sanitizers.
  if (grammar->states().size() < 20000) generate(grammar, text);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  tandem::check({reinterpret_cast<const char*>(data) + 1, size - 1}, data[0] % 2 == 1);
  return 0;
}
