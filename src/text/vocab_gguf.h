// Reads the tokenizer of a GGUF file, with or without weights, from its metadata (tokenizer.ggml.*).
// Throws Error(bad_file) with file and key for unsupported tokenizers, arrays of the wrong type or with
// different lengths, malformed merges, and ids out of range.
#pragma once

#include <memory>

#include "gguf/file.h"
#include "text/vocab.h"

namespace tandem {

VocabData read_vocab_data(const Metadata& metadata);

std::shared_ptr<const Vocab> load_vocab(const GgufFile& file);

}  // namespace tandem
