// Converts the tokenizer of a Hugging Face folder to GGUF metadata: from tokenizer.json or tokenizer.model,
// completed by tokenizer_config.json, special_tokens_map.json, config.json and generation_config.json.
//
// Pure functions of the folder. Throw Error(bad_file) with the file and the key for malformed tokenizers and
// kinds that GGUF does not support.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gguf/metadata.h"
#include "text/vocab_data.h"
#include "tools/convert/json.h"

namespace tandem::tools {

struct TokenizerOptions {
  int64_t n_vocab = 0;  // rows of the embedding table; the vocabulary is padded to it
  std::string pre;      // the pre-tokenizer's name, if the user sets it
};

// Sets tokenizer.* from the files of `folder`. `config` is config.json.
void add_tokenizer(const std::string& folder, const JsonObject& config, const TokenizerOptions& options,
                   Metadata& metadata);

// Its building blocks, each in a file of its own.

// tokenizer.json (tokenizer_json.cpp): tokens (with an empty text for unused ids), merges, kind, and what its
// post-processor adds.
VocabData read_tokenizer_json(const JsonObject& json, const std::string& pre);
bool is_byte_level(const JsonObject& tokenizer_json);
// Sets an added token {id, content, special}.
void apply_added_token(VocabData& data, int64_t id, const std::string& content, bool special,
                       const std::string& source);

// tokenizer.model (sentencepiece_model.cpp). `bytes` is a SentencePiece ModelProto.
VocabData read_sentencepiece_model(std::string_view bytes, const std::string& source);

// Finds the pre-tokenizer of text/pretokenizer_table.h with the same behaviour (pre_tokenizer_name.cpp).
std::string pre_tokenizer_name(const JsonObject& tokenizer_json);

}  // namespace tandem::tools
