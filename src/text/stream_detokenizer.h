// StreamDetokenizer: token ids in, one by one; text out, in complete UTF-8 characters.
// One text, one thread. The vocabulary must outlive it.
#pragma once

#include <string>

#include "text/vocab.h"

namespace tandem {

class StreamDetokenizer {
 public:
  explicit StreamDetokenizer(const Vocab& vocab, SpecialText special = SpecialText::hidden)
      : vocab_(vocab), special_(special), at_start_(vocab.add_space_prefix()) {}

  // Returns the characters that this token completes; may be empty. Invalid bytes become U+FFFD.
  std::string add(int32_t id);

  // Returns the rest of the text: U+FFFD if it ends inside a character, else nothing.
  std::string finish();

 private:
  std::string take_whole_characters();

  const Vocab& vocab_;
  SpecialText special_;
  bool at_start_;        // the next leading space is the one that tokenize added
  std::string pending_;  // an incomplete character, at most 3 bytes between calls
};

}  // namespace tandem
