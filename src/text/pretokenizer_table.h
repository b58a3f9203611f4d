// The pre-tokenizers of byte-level BPE: how a text is cut into pieces before merging, by the name that a
// model file gives in tokenizer.ggml.pre. Facts as the models' authors published them (tokenizer.json), one
// row a family. Made at the first use, immutable; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// What a step does with every piece that the steps before it left.
enum class SplitStep {
  isolate,         // each match becomes a piece of its own; so does what lies between matches
  group_by_three,  // the same, and a match is cut into groups of three characters, counted from its end
};

struct PreTokenizerStep {
  SplitStep how;
  std::string pattern;  // PCRE2; \s and \S are exactly the Unicode White_Space property, as in the originals
};

enum class Normalization { none, nfc };

struct PreTokenizerSpec {
  std::string_view names;  // separated by spaces
  std::vector<PreTokenizerStep> steps;
  Normalization normalization = Normalization::none;
  bool ignore_merges = false;  // a piece that is a token as a whole is taken as that token
  bool add_bos = false;        // unless the file says otherwise
};

// nullptr for a name that is not known.
const PreTokenizerSpec* find_pre_tokenizer(std::string_view name);

// What to use for a model that names none, or one that is not known.
const PreTokenizerSpec& default_pre_tokenizer();

std::span<const PreTokenizerSpec> all_pre_tokenizers();

}  // namespace tandem
