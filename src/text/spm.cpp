#include "text/spm.h"

#include <algorithm>
#include <string>

#include "text/utf8.h"

namespace tandem {
namespace {

// A run of bytes of the word; a merge widens the left one and takes the right one out of the chain.
struct Symbol {
  uint32_t start;
  uint32_t n_bytes;  // 0 once merged into its left neighbour
  int32_t prev, next;  // -1 at the ends
  int32_t token;  // kNoToken for a character that is not a token
};

struct Merge {
  float score;
  int32_t left, right;
  uint32_t n_bytes;  // of both when this was queued; differs from theirs once one has changed
  int32_t token;

  // For a heap with the best on top: the highest score, the leftmost of equals.
  bool operator<(const Merge& other) const {
    return score != other.score ? score < other.score : left > other.left;
  }
};

std::string with_space_symbols(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') out += kSpaceSymbol;
    else out += c;
  }
  return out;
}

bool has_space_after_something_else(std::string_view text) {
  for (size_t at = text.find(kSpaceSymbol); at != std::string_view::npos; at = text.find(kSpaceSymbol, at + 1)) {
    if (at > 0 && !text.substr(0, at).ends_with(kSpaceSymbol)) return true;
  }
  return false;
}

// Bytes of the first word: spaces, then everything up to the next space.
size_t word_length(std::string_view text) {
  size_t end = 0;
  while (text.substr(end).starts_with(kSpaceSymbol)) end += kSpaceSymbol.size();
  return std::min(text.find(kSpaceSymbol, end), text.size());
}

}  // namespace

struct SpmTokenizer::Work {
  std::vector<Symbol> symbols;
  std::vector<Merge> heap;
};

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
  Work work;
  while (!rest.empty()) {
    const size_t n = words_are_independent_ ? word_length(rest) : rest.size();
    encode_word(rest.substr(0, n), work, ids);
    rest.remove_prefix(n);
  }
}

void SpmTokenizer::encode_word(std::string_view word, Work& work, std::vector<int32_t>& ids) const {
  auto& [symbols, heap] = work;
  symbols.clear();
  heap.clear();
  for (size_t start = 0; start < word.size();) {
    const size_t n_bytes = next_utf8(word.substr(start)).n_bytes;
    const auto i = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(start), static_cast<uint32_t>(n_bytes), i - 1, i + 1,
                       index_.find(word.substr(start, n_bytes))});
    start += n_bytes;
  }
  symbols.back().next = -1;
  for (size_t i = 1; i < symbols.size(); ++i) {
    try_merge(word, work, static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  }

  while (!heap.empty()) {
    const Merge merge = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(merge.left)];
    Symbol& right = symbols[static_cast<size_t>(merge.right)];
    if (left.n_bytes == 0 || right.n_bytes == 0 || left.n_bytes + right.n_bytes != merge.n_bytes) continue;
    left.n_bytes = merge.n_bytes;
    left.token = merge.token;
    left.next = right.next;
    right.n_bytes = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = merge.left;
    try_merge(word, work, left.prev, merge.left);
    try_merge(word, work, merge.left, left.next);
  }

  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(i)];
    if (symbol.token != kNoToken) ids.push_back(symbol.token);
    else append_bytes(word.substr(symbol.start, symbol.n_bytes), ids);
  }
}

void SpmTokenizer::try_merge(std::string_view word, Work& work, int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return;
  const Symbol& a = work.symbols[static_cast<size_t>(left)];
  const uint32_t n_bytes = a.n_bytes + work.symbols[static_cast<size_t>(right)].n_bytes;
  if (n_bytes > max_token_bytes_) return;
  const int32_t token = index_.find(word.substr(a.start, n_bytes));
  if (token == StringIndex::kAbsent) return;
  work.heap.push_back({tokens_[static_cast<size_t>(token)].score, left, right, n_bytes, token});
  std::push_heap(work.heap.begin(), work.heap.end());
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
