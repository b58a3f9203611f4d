// Feeds arbitrary bytes to the parser of grammars, and generates a text by the accepted ones.
#include "fuzz/fuzz_target.h"
#include "fuzz/grammar_walk.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const std::string_view text = fuzz::Input(data, size).rest();
  fuzz::accepts({ErrorCode::bad_file}, [&] { fuzz::walk(Grammar::parse(std::string(text)), text); });
  return 0;
}
