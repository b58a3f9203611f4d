#include "text/bpe.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <memory>

#include "base/error.h"
#include "base/utf8.h"
#include "text/byte_alphabet.h"

namespace tandem {
namespace {

bool is_ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 0x80; });
}

// Normalizes to canonical composition. `text` is valid UTF-8.
std::string to_nfc(std::string_view text) {
  if (is_ascii(text)) return std::string(text);
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t n = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                          static_cast<utf8proc_ssize_t>(text.size()), &composed,
                                          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(composed, &std::free);
  if (n == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (n < 0) return std::string(text);
  return {reinterpret_cast<const char*>(composed), static_cast<size_t>(n)};
}

// Numbers the texts of tokens and merges while the merge table is built.
class SymbolTable {
 public:
  SymbolTable(const StringIndex& tokens, size_t n_tokens)
      : index_(tokens), n_symbols_(static_cast<int32_t>(n_tokens)) {}

  int32_t of(std::string_view text) {
    const int32_t known = index_.find(text);
    if (known != StringIndex::kAbsent) return known;
    others_.emplace_back(text);
    return index_.insert(others_.back(), n_symbols_++);
  }

 private:
  StringIndex index_;
  std::deque<std::string> others_;  // a deque: the views in use stay valid
  int32_t n_symbols_;
};

}  // namespace

size_t MergeTable::home_of(uint64_t key) const {
  key *= 0x9e3779b97f4a7c15u;
  return (key ^ key >> 32) & (buckets_.size() - 1);
}

void MergeTable::reserve(size_t n_merges) {
  buckets_.assign(std::bit_ceil(n_merges * 2 + 1), Bucket{});
}

void MergeTable::insert(int32_t left, int32_t right, PairMerge merge) {
  const uint64_t key = key_of(left, right);
  size_t i = home_of(key);
  while (buckets_[i].key != kEmpty && buckets_[i].key != key) i = (i + 1) & (buckets_.size() - 1);
  if (buckets_[i].key == kEmpty) buckets_[i] = {key, merge};
}

PairMerge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = key_of(left, right);
  for (size_t i = home_of(key);; i = (i + 1) & (buckets_.size() - 1)) {
    if (buckets_[i].key == key) return buckets_[i].merge;
    if (buckets_[i].key == kEmpty) return {};
  }
}

// Buffers of one encode call, so that pieces allocate nothing.
struct BpeTokenizer::Work {
  MergeChain chain;
  std::string letters;
};

BpeTokenizer::BpeTokenizer(const VocabData& data, const StringIndex& index, const PreTokenizerSpec& spec)
    : pre_tokenizer_(spec),
      normalization_(spec.normalization),
      ignore_merges_(spec.ignore_merges),
      tokens_(data.tokens),
      index_(index),
      unknown_(data.special.unk) {
  add_merges(data);
}

void BpeTokenizer::add_merges(const VocabData& data) {
  SymbolTable symbols(index_, tokens_.size());
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_symbols_[byte] = symbols.of(byte_to_letter(static_cast<uint8_t>(byte)));
  }
  merges_.reserve(data.merges.size());
  std::string joined;
  for (size_t rank = 0; rank < data.merges.size(); ++rank) {
    const std::string_view merge = data.merges[rank];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      throw_error(ErrorCode::bad_file,
                  "{}: metadata tokenizer.ggml.merges: found '{}' as merge {}, needed two texts separated "
                  "by a space",
                  data.source, printable(merge, 40), rank);
    }
    const std::string_view left = merge.substr(0, space), right = merge.substr(space + 1);
    joined.assign(left).append(right);
    const int32_t l = symbols.of(left), r = symbols.of(right);
    merges_.insert(l, r, {static_cast<uint32_t>(rank), symbols.of(joined)});
  }
}

// Invalid UTF-8 would stop the regular expressions, so each run of invalid bytes is a piece of its own.
void BpeTokenizer::encode(std::string_view text, std::vector<int32_t>& ids) const {
  Work work;
  while (!text.empty()) {
    const size_t n_valid = valid_utf8_prefix(text);
    if (n_valid > 0) encode_valid(text.substr(0, n_valid), work, ids);
    text.remove_prefix(n_valid);
    size_t n_invalid = 0;
    while (n_invalid < text.size()) {
      const Utf8Char next = next_utf8(text.substr(n_invalid));
      if (next.status == Utf8Status::valid) break;
      n_invalid += next.n_bytes;
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
  PieceCache cache;
  for (const std::string_view piece : pre_tokenizer_.split(text)) {
    if (cache.append_known(piece, ids)) continue;
    const size_t begin = ids.size();
    encode_piece(piece, work, ids);
    cache.remember(piece, begin, ids.size());
  }
}

void BpeTokenizer::encode_piece(std::string_view piece, Work& work, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t whole = whole_piece_token(piece, work.letters);
    if (whole != kNoToken) {
      ids.push_back(whole);
      return;
    }
  }
  MergeChain& chain = work.chain;
  chain.clear();
  for (size_t i = 0; i < piece.size(); ++i) {
    const int32_t symbol = byte_symbols_[static_cast<uint8_t>(piece[i])];
    // Drops a byte that no token can represent; its neighbours may merge.
    if (!is_token(symbol) && unknown_ == kNoToken) continue;
    chain.append(i, symbol);
  }
  chain.merge_all(piece.size(), [&](const MergeNode& left, const MergeNode& right, size_t) {
    return merges_.find(left.symbol, right.symbol);
  });
  chain.for_each(piece.size(), [&](int32_t symbol, size_t start, size_t end) {
    append_symbol(symbol, piece.substr(start, end - start), ids);
  });
}

int32_t BpeTokenizer::whole_piece_token(std::string_view piece, std::string& letters) const {
  letters.clear();
  append_letters(piece, letters);
  const int32_t id = index_.find(letters);
  if (id == StringIndex::kAbsent) return kNoToken;
  const TokenType type = tokens_[id].type;
  return type == TokenType::control || type == TokenType::unknown ? kNoToken : id;
}

// A symbol that is not a token is written as the tokens of its bytes.
void BpeTokenizer::append_symbol(int32_t symbol, std::string_view bytes, std::vector<int32_t>& ids) const {
  if (is_token(symbol)) {
    ids.push_back(symbol);
    return;
  }
  for (const char c : bytes) {
    const int32_t byte_symbol = byte_symbols_[static_cast<uint8_t>(c)];
    if (is_token(byte_symbol))
      ids.push_back(byte_symbol);
    else if (unknown_ != kNoToken)
      ids.push_back(unknown_);
  }
}

}  // namespace tandem
