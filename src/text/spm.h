// SentencePiece-style tokenizer: neighbouring symbols are merged, best score first, as long as what they give
// is a token; characters that end up as no token are spelled in byte tokens. Kudo and Richardson,
// "SentencePiece", 2018; the merging is the BPE of Sennrich et al., 2016, with scores for ranks.
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
  // `tokens` must outlive the object; no score is NaN. byte_tokens: the id of each byte's token, kNoToken
  // where there is none; unknown: what stands for a character that is neither a token nor spelled in bytes,
  // or kNoToken.
  SpmTokenizer(std::span<const Token> tokens, const std::array<int32_t, 256>& byte_tokens, int32_t unknown);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  // Appends the ids of `word`, in which spaces are written as U+2581 already.
  void encode_word(std::string_view word, MergeChain& chain, std::vector<int32_t>& ids) const;
  void append_bytes(std::string_view bytes, std::vector<int32_t>& ids) const;

  std::span<const Token> tokens_;
  std::array<int32_t, 256> byte_tokens_;
  int32_t unknown_;
  StringIndex index_;  // the tokens that plain text may become
  size_t max_token_bytes_ = 0;
  bool words_are_independent_ =
      true;  // no token has a space after something else, so no merge crosses a word
};

}  // namespace tandem
