// Reads the tokenizer of a GGUF file, with or without weights, from its metadata (tokenizer.ggml.*).
// Throws Error(bad_file) naming the file and the key: a tokenizer that is not supported, arrays of the wrong
// type or of lengths that disagree, malformed merges, ids out of range.
#pragma once

#include <memory>

#include "gguf/file.h"
#include "text/vocab.h"

namespace tandem {

VocabData read_vocab_data(const Metadata& metadata);

std::shared_ptr<const Vocab> load_vocab(const GgufFile& file);

}  // namespace tandem
