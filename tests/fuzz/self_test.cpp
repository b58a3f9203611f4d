// Finds nothing but inputs with a "!": for the test of scripts/fuzz.py, which must report and keep them.
#include "fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = tandem::fuzz::Input(data, size).rest();
  TANDEM_CHECK(text.find('!') == text.npos);
  return 0;
}
