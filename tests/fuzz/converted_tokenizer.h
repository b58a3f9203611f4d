// Converts the tokenizer of a folder, and reads what came out: convert writes no tokenizer that a model could not have.
#pragma once

#include "fuzz/fuzz_target.h"
#include "text/vocab_gguf.h"
#include "tools/convert/tokenizer.h"

namespace tandem::fuzz {

inline void check_converted_tokenizer(const std::string& folder) {
  const auto config = tools::JsonObject::parse(R"({"eos_token_id": 2})", "config.json");
  Metadata metadata(folder);
  const auto convert = [&] { tools::add_tokenizer(folder, config, {.n_vocab = 400}, metadata); };
  bool is_accepted = false;
  try {
    is_accepted = accepts({ErrorCode::bad_file}, convert);
  } catch (const tools::Json::exception&) {
    return;  // prepare_conversion() makes an Error of it
  }
  if (!is_accepted) return;
  const Vocab vocab(read_vocab_data(metadata));
  for (const int32_t id : vocab.tokenize("Hello <s> w\xc3\xb6rld\n 12")) {
    TANDEM_CHECK(id >= 0 && id < vocab.size());
    vocab.detokenize(std::span(&id, 1));
  }
}

}  // namespace tandem::fuzz
