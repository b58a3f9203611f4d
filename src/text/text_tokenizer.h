// TextTokenizer: turns plain text, special tokens already cut out, into token ids. One implementation for
// each kind of tokenizer: spm.h, bpe.h. Immutable; any number of threads.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

class TextTokenizer {
 public:
  virtual ~TextTokenizer() = default;

  // Appends the ids of `text`, which may be any bytes. Text is lost only if the vocabulary has neither a
  // token for a byte nor an unknown token.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
};

}  // namespace tandem
