// The tokenizer of a Hugging Face folder as GGUF metadata: from tokenizer.json or tokenizer.model, with what
// tokenizer_config.json, special_tokens_map.json, config.json and generation_config.json add.
//
// Pure functions of the folder. Throw Error(bad_file) naming the file and the key for what is no tokenizer,
// or one of a kind that GGUF has no name for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "gguf/metadata.h"
#include "text/vocab_data.h"
#include "tools/convert/json.h"

namespace tandem::tools {

struct TokenizerOptions {
  int64_t n_vocab = 0;  // rows of the embedding table: the vocabulary is filled up to it
  std::string pre;      // the name of the pre-tokenizer, where the user says it (--pre)
};

// Sets tokenizer.* from the files of `folder`. `config` is config.json.
void add_tokenizer(const std::string& folder, const JsonObject& config, const TokenizerOptions& options,
                   Metadata& metadata);

// Parts of it, each in a file of its own.

// tokenizer.json (tokenizer_json.cpp): tokens (without a text where an id has none), merges, kind, and what
// its post-processor adds.
VocabData read_tokenizer_json(const JsonObject& json, const std::string& pre);
bool is_byte_level(const JsonObject& tokenizer_json);
// Sets the added tokens of an array of {id, content, special}.
void apply_added_token(VocabData& data, int64_t id, const std::string& content, bool special,
                       const std::string& source);

// tokenizer.model (sentencepiece_model.cpp). `bytes` is a SentencePiece ModelProto.
VocabData read_sentencepiece_model(std::string_view bytes, const std::string& source);

// Which pre-tokenizer of text/pretokenizer_table.h cuts like this tokenizer.json (pre_tokenizer_name.cpp).
std::string pre_tokenizer_name(const JsonObject& tokenizer_json);

}  // namespace tandem::tools
