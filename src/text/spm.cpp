#include "text/spm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/utf8.h"

namespace tandem {
namespace {

std::string with_space_symbols(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ')
      out += kSpaceSymbol;
    else
      out += c;
  }
  return out;
}

bool has_space_after_something_else(std::string_view text) {
  for (size_t at = text.find(kSpaceSymbol); at != std::string_view::npos;
       at = text.find(kSpaceSymbol, at + 1)) {
    if (at > 0 && !text.substr(0, at).ends_with(kSpaceSymbol)) return true;
  }
  return false;
}

// Returns the length of the first word: spaces, then everything up to the next space.
size_t word_length(std::string_view text) {
  size_t end = 0;
  while (text.substr(end).starts_with(kSpaceSymbol)) end += kSpaceSymbol.size();
  return std::min(text.find(kSpaceSymbol, end), text.size());
}

// Maps scores to integers, highest score first. `score` is not NaN.
uint32_t priority_of(float score) {
  const uint32_t bits = std::bit_cast<uint32_t>(score + 0.0f);  // turns -0 into 0
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return ~ascending;
}

}  // namespace

SpmTokenizer::SpmTokenizer(std::span<const Token> tokens, const std::array<int32_t, 256>& byte_tokens,
                           int32_t unknown)
    : tokens_(tokens), byte_tokens_(byte_tokens), unknown_(unknown), index_(tokens.size()) {
  for (size_t id = 0; id < tokens.size(); ++id) {
    const Token& token = tokens[id];
    const bool never_plain_text =
        token.type == TokenType::control || token.type == TokenType::unknown || token.type == TokenType::byte;
    if (never_plain_text || token.text.empty()) continue;
    index_.insert(token.text, static_cast<int32_t>(id));
    max_token_bytes_ = std::max(max_token_bytes_, token.text.size());
    if (has_space_after_something_else(token.text)) words_are_independent_ = false;
  }
}

void SpmTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  const std::string escaped = with_space_symbols(text);
  std::string_view rest = escaped;
  MergeChain chain;
  PieceCache cache;
  while (!rest.empty()) {
    const size_t n = words_are_independent_ ? word_length(rest) : rest.size();
    const std::string_view word = rest.substr(0, n);
    rest.remove_prefix(n);
    if (cache.append_known(word, ids)) continue;
    const size_t begin = ids.size();
    encode_word(word, chain, ids);
    cache.remember(word, begin, ids.size());
  }
}

void SpmTokenizer::encode_word(std::string_view word, MergeChain& chain, std::vector<int32_t>& ids) const {
  chain.clear();
  for (size_t start = 0; start < word.size();) {
    const size_t n_bytes = next_utf8(word.substr(start)).n_bytes;
    chain.append(start, index_.find(word.substr(start, n_bytes)));
    start += n_bytes;
  }
  chain.merge_all(word.size(), [&](const MergeNode& left, const MergeNode&, size_t end) -> PairMerge {
    if (end - left.start > max_token_bytes_) return {};
    const int32_t token = index_.find(word.substr(left.start, end - left.start));
    if (token == StringIndex::kAbsent || std::isinf(tokens_[token].score)) return {};
    return {priority_of(tokens_[token].score), token};
  });
  chain.for_each(word.size(), [&](int32_t token, size_t start, size_t end) {
    if (token != kNoToken)
      ids.push_back(token);
    else
      append_bytes(word.substr(start, end - start), ids);
  });
}

void SpmTokenizer::append_bytes(std::string_view bytes, std::vector<int32_t>& ids) const {
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)]; };
  if (std::all_of(bytes.begin(), bytes.end(), [&](char c) { return token_of(c) != kNoToken; })) {
    for (const char c : bytes) ids.push_back(token_of(c));
  } else if (unknown_ != kNoToken) {
    ids.push_back(unknown_);
  }
}

}  // namespace tandem
