// Feeds arbitrary bytes to the translation of JSON schemas, and generates a text by the resulting grammars.
#include "fuzz/fuzz_target.h"
#include "fuzz/grammar_walk.h"
#include "sample/json_schema/json_schema.h"

namespace tandem {
namespace {

// A translated schema is valid GBNF, except for endless loops and excessive sizes.
bool may_be_refused(std::string_view message) {
  return message.find("left recursion") != message.npos || message.find("has no end") != message.npos ||
         message.find("more than") != message.npos || message.find("nested deeper") != message.npos;
}

void check(std::string_view text) {
  std::string gbnf;
  if (!fuzz::accepts({ErrorCode::bad_file}, [&] { gbnf = json_schema_to_gbnf(std::string(text)); })) return;
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = Grammar::parse(gbnf);
  } catch (const Error& error) {
    TANDEM_CHECK(may_be_refused(error.what()));
    return;
  }
  fuzz::walk(grammar, text);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::check(tandem::fuzz::Input(data, size).rest());
  return 0;
}
