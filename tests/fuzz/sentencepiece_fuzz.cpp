// Feeds arbitrary bytes to the conversion of tokenizer.model, a SentencePiece model.
#include "fuzz/converted_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::InputFolder folder;
  folder.set("tokenizer.model", fuzz::Input(data, size).rest());
  fuzz::check_converted_tokenizer(folder.path());
  return 0;
}
