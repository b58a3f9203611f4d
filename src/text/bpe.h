// Byte-level BPE: a pre-tokenizer cuts the text into pieces. Within a piece, starting from single bytes, the
// adjacent pair of best rank is merged until no pair is in the table. (Sennrich et al., 2016; GPT-2, 2019.)
// Works on symbol numbers, not strings: every text in a merge is a symbol. O(n log n) for any piece.
#pragma once

#include <array>
#include <span>

#include "text/merge.h"
#include "text/pretokenizer.h"
#include "text/string_index.h"
#include "text/text_tokenizer.h"
#include "text/vocab_data.h"

namespace tandem {

// Maps (left symbol, right symbol) to the merged symbol, with its rank as priority. Open addressing.
class MergeTable {
 public:
  void reserve(size_t n_merges);
  // Does nothing if the pair is already there: the earlier merge has the better rank.
  void insert(int32_t left, int32_t right, PairMerge merge);
  PairMerge find(int32_t left, int32_t right) const;

 private:
  struct Bucket {
    uint64_t key = kEmpty;
    PairMerge merge = {};
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;  // never a key: symbols are not negative
  static uint64_t key_of(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  size_t home_of(uint64_t key) const;

  std::vector<Bucket> buckets_;  // a power of two, at most half full
};

class BpeTokenizer final : public TextTokenizer {
 public:
  // data.tokens and `index` (text -> id of data.tokens) must outlive the object; data.merges need not.
  // Throws Error(bad_file) with the first malformed merge.
  BpeTokenizer(const VocabData& data, const StringIndex& index, const PreTokenizerSpec& spec);

  void encode(std::string_view text, std::vector<int32_t>& ids) const override;

 private:
  struct Work;
  void encode_valid(std::string_view text, Work& work, std::vector<int32_t>& ids) const;
  void encode_piece(std::string_view piece, Work& work, std::vector<int32_t>& ids) const;
  int32_t whole_piece_token(std::string_view piece, std::string& letters) const;
  void append_symbol(int32_t symbol, std::string_view bytes, std::vector<int32_t>& ids) const;
  void add_merges(const VocabData& data);
  bool is_token(int32_t symbol) const { return static_cast<size_t>(symbol) < tokens_.size(); }

  PreTokenizer pre_tokenizer_;
  Normalization normalization_;
  bool ignore_merges_;
  std::span<const Token> tokens_;
  const StringIndex& index_;
  int32_t unknown_;
  // A symbol below tokens_.size() is that token; above, a text of the merge table that is not a token.
  std::array<int32_t, 256> byte_symbols_;
  MergeTable merges_;
};

}  // namespace tandem
