// Vocab: the tokenizer of a model. Text to token ids and back.
//
// Made once from a VocabData (see vocab_gguf.h for files) and shared: immutable, every member may be called
// from any thread. The constructor throws Error(bad_file), naming the metadata key, for data that makes no
// tokenizer; tokenize and detokenize take any bytes and throw only for a text too long to index
// (Error(usage)) and bad_alloc. A model may have more outputs than its vocabulary has tokens (padding): such
// an id stands for no text and ends nothing.
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

// A place where a text can be cut so that its parts have the tokens of the whole.
struct TokenCut {
  size_t n_tokens, n_bytes;  // before it
};

struct TokenizeOptions {
  bool add_special = true;    // BOS before and EOS behind, where the model wants them
  bool parse_special = true;  // "<|eot_id|>" in the text is that token; if not, it is plain text
  // Where no control token is found all the same, however much of it lies outside; ascending, apart. Text
  // that users typed is marked so within a prompt whose own control tokens count.
  std::span<const TextSpan> plain = {};
  bool at_start = true;  // false: the text goes on from another, so no space is put before it
  std::vector<TokenCut>* cuts = nullptr;  // gets every place behind a special token
};

enum class SpecialText { hidden, shown };  // what control tokens (BOS, "<|eot_id|>") look like as text

class Vocab {
 public:
  explicit Vocab(VocabData data);
  Vocab(const Vocab&) = delete;
  Vocab& operator=(const Vocab&) = delete;

  int32_t size() const { return static_cast<int32_t>(data_.tokens.size()); }
  TokenizerKind kind() const { return data_.kind; }
  const std::string& pre_tokenizer() const { return data_.pre; }
  bool has(int32_t id) const { return id >= 0 && id < size(); }
  const Token& token(int32_t id) const { return data_.tokens[static_cast<size_t>(id)]; }  // has(id)
  const SpecialIds& special() const { return data_.special; }
  bool add_bos() const { return add_bos_; }
  bool add_eos() const { return add_eos_; }
  bool add_space_prefix() const { return add_space_prefix_; }

  // Whether generation ends with this token: end of sequence, of turn, of message, or another of that
  // meaning.
  bool is_eog(int32_t id) const { return has(id) && is_eog_[static_cast<size_t>(id)]; }
  std::span<const int32_t> eog_ids() const { return eog_ids_; }  // ascending

  // The token whose text, as the file has it, is exactly this.
  std::optional<int32_t> find(std::string_view text) const;

  std::vector<int32_t> tokenize(std::string_view text, const TokenizeOptions& options = {}) const;

  // The bytes a token stands for; half a character is possible. SPM: a leading space is kept.
  std::string token_to_piece(int32_t id, SpecialText special = SpecialText::hidden) const;
  // The bytes that the ids stand for; what tokenize was given, but for what it had to change (normalization,
  // white space around special tokens that swallow it).
  std::string detokenize(std::span<const int32_t> ids, SpecialText special = SpecialText::hidden) const;

  // Whether what stands behind this token is a text of its own, before which tokenize puts a space.
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

  VocabData data_;  // without the merges, which live on in the text tokenizer
  StringIndex index_;
  bool add_bos_ = false, add_eos_ = false, add_space_prefix_ = false, remove_extra_whitespaces_ = false;
  std::vector<int32_t> eog_ids_;
  std::vector<bool> is_eog_;
  std::unique_ptr<TextTokenizer> text_tokenizer_;
  SpecialMatcher all_special_;   // control, unknown and user-defined tokens
  SpecialMatcher user_defined_;  // these stand for themselves even in plain text
};

}  // namespace tandem
