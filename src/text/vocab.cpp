#include "text/vocab.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/log.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/pretokenizer_table.h"
#include "text/special_tokens.h"
#include "text/spm.h"

namespace tandem {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 30;  // positions in a text are 32-bit

// Returns the byte of "<0x41>"; nullopt for any other text.
std::optional<uint8_t> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  int value = 0;
  for (const char c : text.substr(3, 2)) {
    int digit;
    if (c >= '0' && c <= '9')
      digit = c - '0';
    else if (c >= 'A' && c <= 'F')
      digit = c - 'A' + 10;
    else if (c >= 'a' && c <= 'f')
      digit = c - 'a' + 10;
    else
      return std::nullopt;
    value = value * 16 + digit;
  }
  return static_cast<uint8_t>(value);
}

std::array<int32_t, 256> find_byte_tokens(const VocabData& data) {
  std::array<int32_t, 256> ids;
  ids.fill(kNoToken);
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    if (data.tokens[id].type != TokenType::byte) continue;
    int32_t& slot = ids[byte_of(data.tokens[id].text).value()];
    if (slot == kNoToken) slot = static_cast<int32_t>(id);
  }
  return ids;
}

bool is_white_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

std::string collapse_spaces(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out += c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

std::string spaces_for_symbols(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const bool space = text.substr(i).starts_with(kSpaceSymbol);
    out += space ? ' ' : text[i];
    i += space ? kSpaceSymbol.size() : 1;
  }
  return out;
}

}  // namespace

Vocab::Vocab(VocabData data) : data_(std::move(data)), index_(data_.tokens.size()) {
  check();
  for (size_t id = 0; id < data_.tokens.size(); ++id) {
    if (!data_.tokens[id].text.empty()) index_.insert(data_.tokens[id].text, static_cast<int32_t>(id));
  }
  find_special_roles(data_, index_);
  eog_ids_ = find_end_of_generation(data_, index_);
  is_eog_.resize(data_.tokens.size());
  for (const int32_t id : eog_ids_) is_eog_[id] = true;

  const PreTokenizerSpec* pre_tokenizer = nullptr;
  if (data_.kind == TokenizerKind::bpe) {
    pre_tokenizer = find_pre_tokenizer(data_.pre);
    if (pre_tokenizer == nullptr) {
      log_warning(
          "{}: {}; using the default, which may cut the text differently from how the model was trained",
          data_.source,
          data_.pre.empty()
              ? "no pre-tokenizer is named (metadata tokenizer.ggml.pre)"
              : format("unknown pre-tokenizer '{}' (metadata tokenizer.ggml.pre)", printable(data_.pre)));
      pre_tokenizer = &default_pre_tokenizer();
    }
  }
  set_flags(pre_tokenizer);
  make_text_tokenizer(pre_tokenizer);
  make_matchers();
  data_.merges = {};
}

void Vocab::check() const {
  const char* source = data_.source.c_str();
  const size_t n = data_.tokens.size();
  if (n == 0) {
    throw_error(ErrorCode::bad_file,
                "{}: metadata tokenizer.ggml.tokens: found an empty array, needed tokens", source);
  }
  if (n > static_cast<size_t>(std::numeric_limits<int32_t>::max() / 4)) {
    throw_error(ErrorCode::bad_file,
                "{}: metadata tokenizer.ggml.tokens: found {} tokens, needed fewer than 2^29", source, n);
  }
  for (size_t id = 0; id < n; ++id) {
    const Token& token = data_.tokens[id];
    if (std::isnan(token.score)) {
      throw_error(ErrorCode::bad_file,
                  "{}: metadata tokenizer.ggml.scores: the score of token {} is not a number", source, id);
    }
    if (data_.kind == TokenizerKind::spm && token.type == TokenType::byte && !byte_of(token.text)) {
      throw_error(ErrorCode::bad_file,
                  "{}: metadata tokenizer.ggml.tokens: token {} is of type byte, but its text is '{}'; "
                  "needed <0x00> to <0xFF>",
                  source, id, printable(token.text, 40));
    }
  }
  constexpr std::pair<int32_t SpecialIds::*, const char*> kRoles[] = {
      {&SpecialIds::bos, "bos"},         {&SpecialIds::eos, "eos"},         {&SpecialIds::eot, "eot"},
      {&SpecialIds::eom, "eom"},         {&SpecialIds::unk, "unknown"},     {&SpecialIds::sep, "seperator"},
      {&SpecialIds::pad, "padding"},     {&SpecialIds::mask, "mask"},       {&SpecialIds::fim_pre, "fim_pre"},
      {&SpecialIds::fim_suf, "fim_suf"}, {&SpecialIds::fim_mid, "fim_mid"}, {&SpecialIds::fim_pad, "fim_pad"},
      {&SpecialIds::fim_rep, "fim_rep"}, {&SpecialIds::fim_sep, "fim_sep"}};
  for (const auto& [role, name] : kRoles) {
    const int32_t id = data_.special.*role;
    if (id != kNoToken && (id < 0 || static_cast<size_t>(id) >= n)) {
      throw_error(ErrorCode::bad_file,
                  "{}: metadata tokenizer.ggml.{}_token_id: found {}, needed an id below {}", source, name,
                  id, n);
    }
  }
}

void Vocab::set_flags(const PreTokenizerSpec* pre_tokenizer) {
  const bool spm = data_.kind == TokenizerKind::spm;
  const auto value = [](Flag flag, bool otherwise) {
    return flag == Flag::unset ? otherwise : flag == Flag::on;
  };
  const char* source = data_.source.c_str();
  if (data_.add_bos == Flag::on && data_.special.bos == kNoToken) {
    throw_error(
        ErrorCode::bad_file,
        "{}: metadata tokenizer.ggml.add_bos_token is true, but there is no tokenizer.ggml.bos_token_id",
        source);
  }
  if (data_.add_eos == Flag::on && data_.special.eos == kNoToken) {
    throw_error(
        ErrorCode::bad_file,
        "{}: metadata tokenizer.ggml.add_eos_token is true, but there is no tokenizer.ggml.eos_token_id",
        source);
  }
  const bool usually_bos = spm || pre_tokenizer->add_bos;
  add_bos_ = value(data_.add_bos, usually_bos) && data_.special.bos != kNoToken;
  add_eos_ = value(data_.add_eos, false);
  // BPE has neither: its pre-tokenizers see spaces as part of the text.
  add_space_prefix_ = spm && value(data_.add_space_prefix, true);
  remove_extra_whitespaces_ = spm && value(data_.remove_extra_whitespaces, false);
}

void Vocab::make_text_tokenizer(const PreTokenizerSpec* pre_tokenizer) {
  if (data_.kind == TokenizerKind::spm) {
    text_tokenizer_ =
        std::make_unique<SpmTokenizer>(data_.tokens, find_byte_tokens(data_), data_.special.unk);
  } else {
    text_tokenizer_ = std::make_unique<BpeTokenizer>(data_, index_, *pre_tokenizer);
  }
}

void Vocab::make_matchers() {
  std::vector<SpecialMatcher::Entry> all, user_defined;
  for (int32_t id = 0; id < size(); ++id) {
    const Token& t = token(id);
    if (is_cut_out(t.type)) all.push_back({t.text, id});
    if (t.type == TokenType::user_defined) user_defined.push_back({t.text, id});
  }
  all_special_ = SpecialMatcher(std::move(all));
  user_defined_ = SpecialMatcher(std::move(user_defined));
}

std::optional<int32_t> Vocab::find(std::string_view text) const {
  const int32_t id = index_.find(text);
  return id == StringIndex::kAbsent ? std::nullopt : std::optional<int32_t>(id);
}

std::vector<int32_t> Vocab::tokenize(std::string_view text, const TokenizeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    throw_error(ErrorCode::usage, "the text has {} bytes, at most {} can be tokenized at once", text.size(),
                kMaxTextBytes);
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 2);
  if (options.add_special && add_bos_) ids.push_back(data_.special.bos);

  bool at_start = options.at_start;
  size_t done = 0;
  while (done < text.size()) {
    const SpecialMatcher::Match match = find_special(text, done, options);
    size_t end = match.position;
    if (match.id != kNoToken && token(match.id).strip_left) {
      while (end > done && is_white_space(text[end - 1])) --end;
    }
    if (end > done) encode_fragment(text.substr(done, end - done), at_start, ids);
    if (match.id == kNoToken) break;
    ids.push_back(match.id);
    at_start = true;
    done = match.position + match.n_bytes;
    if (token(match.id).strip_right) {
      while (done < text.size() && is_white_space(text[done])) ++done;
    }
    if (options.cuts != nullptr) options.cuts->push_back({ids.size(), done});
  }
  if (options.add_special && add_bos_) warn_about_double_bos(ids);
  if (options.add_special && add_eos_) ids.push_back(data_.special.eos);
  return ids;
}

// Finds the first special token at or after `from` that is allowed there.
SpecialMatcher::Match Vocab::find_special(std::string_view text, size_t from,
                                          const TokenizeOptions& options) const {
  const SpecialMatcher::Match none{text.size(), 0, kNoToken};
  const SpecialMatcher& matcher = options.parse_special ? all_special_ : user_defined_;
  if (matcher.empty()) return none;
  for (;;) {
    const SpecialMatcher::Match match = matcher.find(text, from);
    if (match.id == kNoToken || token(match.id).type == TokenType::user_defined) return match;
    const auto span = std::partition_point(options.plain.begin(), options.plain.end(),
                                           [&](const TextSpan& s) { return s.end <= match.position; });
    if (span == options.plain.end() || span->begin >= match.position + match.n_bytes) return match;
    // A shorter token may end before the span, and a user-defined one may stand anywhere.
    for (const auto& [other, end] : {std::pair(&all_special_, std::max(span->begin, match.position)),
                                     std::pair(&user_defined_, text.size())}) {
      const SpecialMatcher::Match shorter = other->find(text.substr(0, end), match.position);
      if (shorter.id != kNoToken && shorter.position == match.position) return shorter;
    }
    from = match.position + 1;
  }
}

void Vocab::encode_fragment(std::string_view text, bool at_start, std::vector<int32_t>& ids) const {
  std::string changed;
  if (remove_extra_whitespaces_) {
    changed = collapse_spaces(text);
    text = changed;
  }
  if (add_space_prefix_ && at_start) {
    changed = " " + std::string(text);
    text = changed;
  }
  text_tokenizer_->encode(text, ids);
}

void Vocab::warn_about_double_bos(std::span<const int32_t> ids) const {
  if (ids.size() < 2 || ids[1] != data_.special.bos) return;
  log_warning("the text starts with the token '{}', which is added to every text; now there are two of them",
              printable(token(data_.special.bos).text));
}

std::string Vocab::token_to_piece(int32_t id, SpecialText special) const {
  if (!has(id)) return {};
  const Token& t = token(id);
  switch (t.type) {
    case TokenType::control:
    case TokenType::unknown: return special == SpecialText::shown ? t.text : std::string();
    case TokenType::user_defined: return t.text;
    case TokenType::byte:
      if (const auto byte = byte_of(t.text)) return std::string(1, static_cast<char>(*byte));
      break;
    default: break;
  }
  return data_.kind == TokenizerKind::spm ? spaces_for_symbols(t.text) : letters_to_bytes(t.text);
}

std::string Vocab::detokenize(std::span<const int32_t> ids, SpecialText special) const {
  std::string text;
  bool at_start = add_space_prefix_;
  for (const int32_t id : ids) {
    const std::string piece = token_to_piece(id, special);
    std::string_view shown = piece;
    if (restarts_text(id)) {
      at_start = true;
    } else {
      if (at_start && shown.starts_with(' ')) shown.remove_prefix(1);
      at_start = false;
    }
    text += shown;
  }
  return text;
}

}  // namespace tandem
