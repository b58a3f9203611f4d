// Two vocabularies small enough to merge by hand. Both have a token for every byte, so they lose no text.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/vocab_data.h"

namespace tandem::test {

// "<0x41>" for 0x41.
inline std::string byte_token_text(int byte) {
  char text[8];
  snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte) & 0xffu);
  return text;
}

// Ids: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then the words below, "<tool>" (user-defined), "<|im_end|>"
// (control).
inline VocabData tiny_spm() {
  VocabData data;
  data.kind = TokenizerKind::spm;
  data.tokens = {
      {"<unk>", 0, TokenType::unknown}, {"<s>", 0, TokenType::control}, {"</s>", 0, TokenType::control}};
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back({byte_token_text(byte), 0, TokenType::byte});
  const std::pair<const char*, float> words[] = {
      {"▁", -20}, {"h", -21},  {"e", -22},  {"l", -23},    {"o", -24},      {"w", -25},    {"r", -26},
      {"d", -27}, {"▁▁", -3},  {"he", -5},  {"ll", -6},    {"hell", -7},    {"hello", -8}, {"▁hello", -4},
      {"▁w", -9}, {"or", -10}, {"ld", -11}, {"orld", -12}, {"▁world", -13}, {"lo", -5}};
  for (const auto& [text, score] : words) data.tokens.push_back({text, score, TokenType::normal});
  data.tokens.push_back({"<tool>", 0, TokenType::user_defined});
  data.tokens.push_back({"<|im_end|>", 0, TokenType::control});
  data.special.unk = 0;
  data.special.bos = 1;
  data.special.eos = 2;
  return data;
}

// Ids: 0..255 the bytes, then the words that the merges make, "<tool>" (user-defined), "<|im_end|>"
// (control), and "world", which no merge makes.
inline VocabData tiny_bpe(const std::string& pre = "gpt-2") {
  VocabData data;
  data.kind = TokenizerKind::bpe;
  data.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    data.tokens.push_back({std::string(byte_to_letter(static_cast<uint8_t>(byte))), 0, TokenType::normal});
  }
  data.merges = {"h e",   "l l", "he ll", "hell o", "Ġ hello", "a a",
                 "aa aa", "l o", "Ċ Ċ",   "1 2",    "12 3",    "Ġ Ġ"};
  for (const std::string& merge : data.merges) {
    const size_t space = merge.find(' ');
    data.tokens.push_back({merge.substr(0, space) + merge.substr(space + 1), 0, TokenType::normal});
  }
  data.tokens.push_back({"<tool>", 0, TokenType::user_defined});
  data.tokens.push_back({"<|im_end|>", 0, TokenType::control});
  data.tokens.push_back({"world", 0, TokenType::normal});
  return data;
}

}  // namespace tandem::test
