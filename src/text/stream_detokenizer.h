// StreamDetokenizer: token ids in, one by one; text out, in whole UTF-8 characters only.
// One text, one thread. The vocabulary must outlive it.
#pragma once

#include <string>

#include "text/vocab.h"

namespace tandem {

class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Vocab& vocab, SpecialText special = SpecialText::hidden)
      : vocab_(vocab), special_(special), at_start_(vocab.add_space_prefix()) {}

  // The characters that this token completes; may be empty. Bytes that can be no part of a character become
  // U+FFFD.
  std::string add(int32_t id);

  // The rest of the text: U+FFFD if it ended inside a character, else nothing.
  std::string finish();

 private:
  std::string take_whole_characters();

  const Vocab& vocab_;
  SpecialText special_;
  bool at_start_;        // a leading space would be the one that tokenize put there
  std::string pending_;  // the start of a character, at most 3 bytes between calls
};

}  // namespace tandem
