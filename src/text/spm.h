// SentencePiece-style tokenizer: merges adjacent symbols, best score first, as long as the result is a token;
// spells characters that are no token as byte tokens. Kudo and Richardson, "SentencePiece", 2018; the merge
// loop is the BPE of Sennrich et al., 2016, with scores in place of ranks.
#pragma once

#include <array>
#include <span>

#include "text/merge.h"
#include "text/string_index.h"
#include "text/text_tokenizer.h"
#include "text/vocab_data.h"

namespace tandem {

inline constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";  // U+2581, how SPM writes a space

class SpmTokenizer final : public TextTokenizer {
 public:
  // `tokens` must outlive the object; scores are not NaN. byte_tokens: the token id of each byte, or
  // kNoToken; unknown: the id for characters that are neither a token nor spelled as bytes, or kNoToken.
  SpmTokenizer(std::span<const Token> tokens, const std::array<int32_t, 256>& byte_tokens, int32_t unknown);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  // Appends the ids of `word`, with spaces already written as U+2581.
  void encode_word(std::string_view word, MergeChain& chain, std::vector<int32_t>& ids) const;
  void append_bytes(std::string_view bytes, std::vector<int32_t>& ids) const;

  std::span<const Token> tokens_;
  std::array<int32_t, 256> byte_tokens_;
  int32_t unknown_;
  StringIndex index_;  // the tokens that plain text may become
  size_t max_token_bytes_ = 0;
  bool words_are_independent_ = true;  // no token has a space except at its start: no merge crosses words
};

}  // namespace tandem
