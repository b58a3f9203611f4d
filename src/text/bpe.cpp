#include "text/bpe.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace tandem {
namespace {

// A run of bytes of the piece; a merge widens the left one and takes the right one out of the chain.
struct Node {
  int32_t symbol;  // kMerged once merged into its left neighbour
  int32_t prev, next;  // -1 at the ends
  uint32_t start;      // byte of the piece
};
constexpr int32_t kMerged = -1;

struct Candidate {
  uint32_t rank;
  int32_t left, right;
  int32_t left_symbol, right_symbol;  // when this was queued; stale once a node has another
  int32_t merged;

  // For a heap with the best on top: the lowest rank, the leftmost of equals.
  bool operator<(const Candidate& other) const { return rank != other.rank ? rank > other.rank : left > other.left; }
};

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// Canonical composition. `text` is valid UTF-8.
std::string to_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t n =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
                   &composed, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (n < 0) return std::string(text);
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(n)};
}

// Symbols for the tokens and for every other text that a merge mentions, while the merge table is built.
class SymbolTable {
 public:
  SymbolTable(const StringIndex& tokens, size_t n_tokens)
      : index_(tokens), n_symbols_(static_cast<int32_t>(n_tokens)) {}

  int32_t of(const std::string& text) {
    const int32_t known = index_.find(text);
    if (known != StringIndex::kAbsent) return known;
    others_.push_back(text);
    return index_.insert(others_.back(), n_symbols_++);
  }

 private:
  StringIndex index_;
  std::deque<std::string> others_;  // never moves what it holds
  int32_t n_symbols_;
};

}  // namespace

size_t MergeTable::home_of(uint64_t key) const {
  key *= 0x9e3779b97f4a7c15u;
  return (key ^ key >> 32) & (slots_.size() - 1);
}

void MergeTable::reserve(size_t n_merges) { slots_.assign(std::bit_ceil(n_merges * 2 + 1), Slot{}); }

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = home_of(key);
  while (slots_[i].key != kEmpty && slots_[i].key != key) i = (i + 1) & (slots_.size() - 1);
  if (slots_[i].key == kEmpty) slots_[i] = {key, merge};
}

const MergeTable::Merge* MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  for (size_t i = home_of(key);; i = (i + 1) & (slots_.size() - 1)) {
    if (slots_[i].key == key) return &slots_[i].merge;
    if (slots_[i].key == kEmpty) return nullptr;
  }
}

// Scratch of one encode call, so that no piece allocates.
struct BpeTokenizer::Work {
  std::vector<Node> nodes;
  std::vector<Candidate> heap;
  std::string letters;
};

BpeTokenizer::BpeTokenizer(const VocabData& data, const StringIndex& index, const PreTokenizerSpec& spec)
    : pre_tokenizer_(spec),
      normalization_(spec.normalization),
      ignore_merges_(spec.ignore_merges),
      tokens_(data.tokens),
      index_(index),
      unknown_(data.special.unk) {
  SymbolTable symbols(index, data.tokens.size());
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = symbols.of(std::string(byte_to_letter(static_cast<uint8_t>(byte))));
  }
  merges_.reserve(data.merges.size());
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const auto& [left, right] = data.merges[rank];
    if (left.empty() || right.empty()) {
      throw_error(ErrorCode::bad_file, "%s: metadata tokenizer.ggml.merges: merge %zu has an empty side",
                  data.source.c_str(), rank);
    }
    const int32_t l = symbols.of(left), r = symbols.of(right);
    merges_.insert(l, r, {static_cast<uint32_t>(rank), symbols.of(left + right)});
  }
}

// Bytes that are no UTF-8 would stop the regular expressions, so each such run is a piece of its own.
void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  Work work;
  while (!text.empty()) {
    const size_t n_valid = valid_utf8_prefix(text);
    if (n_valid > 0) encode_valid(text.substr(0, n_valid), work, ids);
    text.remove_prefix(n_valid);
    size_t n_invalid = 0;
    while (n_invalid < text.size()) {
      const Utf8Step step = next_utf8(text.substr(n_invalid));
      if (step.status == Utf8Status::valid) break;
      n_invalid += step.n_bytes;
    }
    if (n_invalid > 0) encode_piece(text.substr(0, n_invalid), work, ids);
    text.remove_prefix(n_invalid);
  }
}

void BpeTokenizer::encode_valid(std::string_view text, Work& work, std::vector<int32_t>& ids) const {
  std::string normalized;
  if (normalization_ == Normalization::nfc) {
    normalized = to_nfc(text);
    text = normalized;
  }
  for (const std::string_view piece : pre_tokenizer_.split(text)) encode_piece(piece, work, ids);
}

void BpeTokenizer::encode_piece(std::string_view piece, Work& work, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t whole = whole_piece_token(piece, work);
    if (whole != kNoToken) {
      ids.push_back(whole);
      return;
    }
  }
  merge_all(piece, work);
  for (int32_t i = 0; i >= 0;) {
    const Node& node = work.nodes[static_cast<size_t>(i)];
    const size_t end = node.next >= 0 ? work.nodes[static_cast<size_t>(node.next)].start : piece.size();
    append_symbol(node.symbol, piece.substr(node.start, end - node.start), ids);
    i = node.next;
  }
}

int32_t BpeTokenizer::whole_piece_token(std::string_view piece, Work& work) const {
  work.letters.clear();
  append_letters(piece, work.letters);
  const int32_t id = index_.find(work.letters);
  if (id == StringIndex::kAbsent) return kNoToken;
  const TokenType type = tokens_[static_cast<size_t>(id)].type;
  return type == TokenType::control || type == TokenType::unknown ? kNoToken : id;
}

void BpeTokenizer::merge_all(std::string_view piece, Work& work) const {
  auto& [nodes, heap, letters] = work;
  nodes.clear();
  heap.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const auto at = static_cast<int32_t>(i);
    nodes.push_back({byte_symbols_[static_cast<uint8_t>(piece[i])], at - 1, at + 1, static_cast<uint32_t>(i)});
  }
  nodes.back().next = -1;
  for (size_t i = 1; i < nodes.size(); ++i) {
    try_merge(work, static_cast<int32_t>(i) - 1, static_cast<int32_t>(i));
  }
  while (!heap.empty()) {
    const Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    Node& left = nodes[static_cast<size_t>(best.left)];
    Node& right = nodes[static_cast<size_t>(best.right)];
    if (left.symbol != best.left_symbol || right.symbol != best.right_symbol) continue;
    left.symbol = best.merged;
    left.next = right.next;
    right.symbol = kMerged;
    if (left.next >= 0) nodes[static_cast<size_t>(left.next)].prev = best.left;
    try_merge(work, left.prev, best.left);
    try_merge(work, best.left, left.next);
  }
}

void BpeTokenizer::try_merge(Work& work, int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return;
  const int32_t a = work.nodes[static_cast<size_t>(left)].symbol, b = work.nodes[static_cast<size_t>(right)].symbol;
  const MergeTable::Merge* merge = merges_.find(a, b);
  if (merge == nullptr) return;
  work.heap.push_back({merge->rank, left, right, a, b, merge->symbol});
  std::push_heap(work.heap.begin(), work.heap.end());
}

// A symbol that is no token is spelled in the tokens of its bytes.
void BpeTokenizer::append_symbol(int32_t symbol, std::string_view bytes, std::vector<int32_t>& ids) const {
  const auto is_token = [&](int32_t s) { return static_cast<size_t>(s) < tokens_.size(); };
  if (is_token(symbol)) {
    ids.push_back(symbol);
    return;
  }
  for (const char c : bytes) {
    const int32_t byte_symbol = byte_symbols_[static_cast<uint8_t>(c)];
    if (is_token(byte_symbol)) ids.push_back(byte_symbol);
    else if (unknown_ != kNoToken) ids.push_back(unknown_);
  }
}

}  // namespace tandem
