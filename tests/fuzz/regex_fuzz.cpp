// Searches tensor names with arbitrary regular expressions, as -ot and --tensor-type do: no pattern crashes or runs for
// long. The first line is the pattern, the second a name.
#include "base/regex.h"
#include "fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  fuzz::Input input(data, size);
  const std::string_view pattern = input.line(), name = input.rest();
  fuzz::accepts({ErrorCode::usage}, [&] {
    const Regex regex(pattern, "--override-tensor");
    for (const std::string_view text : {name, std::string_view("blk.12.ffn_down_exps.weight")}) {
      const bool found = regex.found_in(text);
      TANDEM_CHECK(regex.found_in(text) == found);
    }
  });
  return 0;
}
