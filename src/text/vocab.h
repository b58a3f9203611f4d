// Vocab: the tokenizer of a model. Text to token ids and back.
//
// Built once from a VocabData (see vocab_gguf.h for files) and shared: immutable, any thread may call any
// member. The constructor throws Error(bad_file), with the metadata key, for an invalid tokenizer; tokenize
// and detokenize accept any bytes and throw only Error(usage), for a text too long to index, and bad_alloc. A
// model may have more outputs than its vocabulary has tokens (padding): such an id has no text and does not
// end generation.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/special_matcher.h"
#include "text/string_index.h"
#include "text/text_span.h"
#include "text/text_tokenizer.h"
#include "text/vocab_data.h"

namespace tandem {

// A position where a text can be cut without changing its tokens.
struct TokenCut {
  size_t n_tokens, n_bytes;  // before it
};

struct TokenizeOptions {
  bool add_special = true;    // add BOS and EOS where the model wants them
  bool parse_special = true;  // "<|eot_id|>" in the text becomes that token; if false it is plain text
  // Spans, ascending and disjoint, that no control token may overlap, not even partly. Marks text that users
  // typed in a prompt that has control tokens of its own.
  std::span<const TextSpan> plain = {};
  bool at_start = true;                   // false: the text continues another, so it gets no space prefix
  std::vector<TokenCut>* cuts = nullptr;  // receives the position after each special token
};

enum class SpecialText { hidden, shown };  // how control tokens (BOS, "<|eot_id|>") appear in text

class Vocab {
 public:
  explicit Vocab(VocabData data);
  Vocab(const Vocab&) = delete;
  Vocab& operator=(const Vocab&) = delete;

  int32_t size() const { return static_cast<int32_t>(data_.tokens.size()); }
  TokenizerKind kind() const { return data_.kind; }
  const std::string& pre_tokenizer() const { return data_.pre; }
  bool has(int32_t id) const { return id >= 0 && id < size(); }
  const Token& token(int32_t id) const { return data_.tokens[id]; }  // has(id)
  const SpecialIds& special() const { return data_.special; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  bool add_space_prefix() const { return add_space_prefix_; }

  // Returns whether this token ends generation: end of sequence, of turn, of message or the like.
  bool is_eog(int32_t id) const { return has(id) && is_eog_[id]; }
  std::span<const int32_t> eog_ids() const { return eog_ids_; }  // ascending

  // Returns the token whose text in the file is exactly this.
  std::optional<int32_t> find(std::string_view text) const;

  std::vector<int32_t> tokenize(std::string_view text, const TokenizeOptions& options = {}) const;

  // Returns the bytes of a token, possibly half a character. SPM: keeps a leading space.
  std::string token_to_piece(int32_t id, SpecialText special = SpecialText::hidden) const;
  // Returns the bytes of the ids: the text given to tokenize, except for what it changed (normalization,
  // white space that special tokens strip).
  std::string detokenize(std::span<const int32_t> ids, SpecialText special = SpecialText::hidden) const;

  // Returns whether text after this token starts anew, with the space prefix that tokenize adds.
  bool restarts_text(int32_t id) const { return add_space_prefix_ && has(id) && is_cut_out(token(id).type); }

 private:
  static bool is_cut_out(TokenType type) {
    return type == TokenType::control || type == TokenType::user_defined || type == TokenType::unknown;
  }
  void check() const;
  void set_flags(const struct PreTokenizerSpec* pre_tokenizer);
  void make_text_tokenizer(const struct PreTokenizerSpec* pre_tokenizer);
  void make_matchers();
  SpecialMatcher::Match find_special(std::string_view text, size_t from,
                                     const TokenizeOptions& options) const;
  void encode_fragment(std::string_view text, bool at_start, std::vector<int32_t>& ids) const;
  void warn_about_double_bos(std::span<const int32_t> ids) const;

  VocabData data_;  // without the merges, which the text tokenizer keeps
  StringIndex index_;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false, remove_extra_whitespaces_ = false;
  std::vector<int32_t> eog_ids_;
  std::vector<bool> is_eog_;
  std::unique_ptr<TextTokenizer> text_tokenizer_;
  SpecialMatcher all_special_;   // control, unknown and user-defined tokens
  SpecialMatcher user_defined_;  // tokens even in plain text
};

}  // namespace tandem
