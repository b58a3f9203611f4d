// The pre-tokenizers of byte-level BPE: how a text is cut into pieces before merging, by the name in
// tokenizer.ggml.pre. The patterns are those that the models' authors published (tokenizer.json), one row per
// family. Built at first use; immutable; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// How a rule splits each piece left by the rules before it.
enum class SplitBehavior {
  isolate,         // each match becomes a piece, and so does the text between matches
  group_by_three,  // as isolate, with matches cut into groups of three characters, counted from their end
};

struct SplitRule {
  SplitBehavior mode;
  std::string pattern;  // PCRE2; \s and \S mean exactly Unicode's White_Space, as in the originals
};

enum class Normalization { none, nfc };

struct PreTokenizerSpec {
  std::string_view names;  // separated by spaces
  std::vector<SplitRule> rules;
  Normalization normalization = Normalization::none;
  bool ignore_merges = false;  // a piece that is itself a token becomes that token
  bool add_bos = false;        // default, if the file does not say
};

// Returns nullptr for an unknown name.
const PreTokenizerSpec* find_pre_tokenizer(std::string_view name);

// For models that name no pre-tokenizer, or an unknown one.
const PreTokenizerSpec& default_pre_tokenizer();

std::span<const PreTokenizerSpec> all_pre_tokenizers();

}  // namespace tandem
