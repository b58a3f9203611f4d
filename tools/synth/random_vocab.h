// Synthetic vocabularies of real size: pronounceable pieces built by merging pairs, as tokenizer training
// does, so that tokenizing costs as much work as with the model's own vocabulary, though it gives about twice
// as many tokens. Special tokens are the model's, with their ids.
//
// Deterministic: the same kind, size and seed give the same vocabulary everywhere. Nothing is thrown.
#pragma once

#include <cstdint>

#include "gguf/metadata.h"
#include "tools/synth/shapes.h"

namespace tandem::tools {

// Sets the tokenizer.ggml.* keys of a vocabulary of exactly n_vocab tokens.
void add_random_vocab(VocabKind kind, int n_vocab, uint64_t seed, Metadata& metadata);

}  // namespace tandem::tools
