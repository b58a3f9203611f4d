// VocabData: a tokenizer as plain data, as model files describe it. Filled by read_vocab_data (from GGUF) or
// by hand (tests, synthetic models); Vocab validates it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem {

enum class TokenizerKind {
  spm,  // SentencePiece-style: merges by score, byte fallback; tokenizer.ggml.model "llama"
  bpe,  // byte-level BPE: merges by rank after a pre-tokenizer; tokenizer.ggml.model "gpt2"
};

// The numbers are those of the file format.
enum class TokenType : int32_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct Token {
  std::string text;  // as in the file: U+2581 for a space (SPM), the byte alphabet of GPT-2 (BPE)
  float score = 0;   // SPM only; -infinity: no two tokens merge into this one
  TokenType type = TokenType::normal;
  bool strip_left = false;   // strips the white space before it
  bool strip_right = false;  // and after it
};

inline constexpr int32_t kNoToken = -1;

// Ids of the tokens with a role; kNoToken where there is none.
struct SpecialIds {
  int32_t bos = kNoToken, eos = kNoToken;
  int32_t eot = kNoToken;  // end of turn
  int32_t eom = kNoToken;  // end of message, before a tool call
  int32_t unk = kNoToken, sep = kNoToken, pad = kNoToken, mask = kNoToken;
  // Fill in the middle: before, after, between, padding, repository name, file separator.
  int32_t fim_pre = kNoToken, fim_suf = kNoToken, fim_mid = kNoToken;
  int32_t fim_pad = kNoToken, fim_rep = kNoToken, fim_sep = kNoToken;
};

enum class Flag { unset, off, on };  // unset: the default of the kind and the pre-tokenizer

struct VocabData {
  std::string source = "vocabulary";  // start of error messages: the path of the file
  TokenizerKind kind = TokenizerKind::spm;
  std::string pre;  // BPE: the name of the pre-tokenizer, tokenizer.ggml.pre
  std::vector<Token> tokens;
  std::vector<std::string> merges;  // BPE, best first: two texts separated by a space
  SpecialIds special;
  Flag add_bos = Flag::unset, add_eos = Flag::unset;
  Flag add_space_prefix = Flag::unset, remove_extra_whitespaces = Flag::unset;
};

}  // namespace tandem
