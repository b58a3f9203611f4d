#include "text/vocab_gguf.h"

#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "text/special_tokens.h"

namespace tandem {
namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kModel = "tokenizer.ggml.model";
constexpr std::string_view kRankedPieces = "gemma4";  // tokenizer.ggml.model
constexpr float kNeverMerged = -std::numeric_limits<float>::infinity();

TokenizerKind read_kind(const Metadata& metadata) {
  const auto model = metadata.get<std::string_view>(kModel);
  if (model == "llama" || model == kRankedPieces) return TokenizerKind::spm;
  if (model == "gpt2") return TokenizerKind::bpe;
  metadata.fail(
      kModel, "'" + printable(model) + "'",
      "'llama' (SentencePiece), 'gpt2' (byte-level BPE) or 'gemma4' (SentencePiece's pieces with merges)");
}

// Scores the tokens of a vocabulary whose pieces merge by rank instead of by score: a token has the rank of the
// first merge that makes it. Both ways agree where every pair of tokens that forms a token is a merge.
void score_by_merges(const Metadata& metadata, VocabData& data) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    ids.emplace(data.tokens[id].text, id);
    data.tokens[id].score = kNeverMerged;
  }
  const auto merges = metadata.get_strings(kMerges);
  if (merges.size() > size_t{1} << 24) {  // scores are floats
    metadata.fail(kMerges, std::to_string(merges.size()) + " merges", "at most 2^24");
  }
  std::string text;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view merge = merges[rank];
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos) {
      metadata.fail(kMerges, format("'{}' at {}", printable(merge, 40), rank),
                    "two texts separated by a space");
    }
    text.assign(merge.substr(0, space)).append(merge.substr(space + 1));
    const auto made = ids.find(text);
    if (made == ids.end()) continue;
    float& score = data.tokens[made->second].score;
    if (score == kNeverMerged) score = -static_cast<float>(rank);
  }
}

void require_length(const Metadata& metadata, const char* key, size_t found, size_t needed) {
  if (found == needed) return;
  metadata.fail(key, format("{} elements", found), format("{}, one for each of {}", needed, kTokens));
}

// For SPM files without token types: recognizes byte tokens by their text, the others by their roles.
void guess_spm_types(VocabData& data) {
  for (Token& token : data.tokens) {
    const std::string& t = token.text;
    if (t.size() == 6 && t.starts_with("<0x") && t.ends_with('>') &&
        t.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5) {
      token.type = TokenType::byte;
    }
  }
  const auto set = [&](int32_t id, TokenType type) {
    if (id >= 0 && static_cast<size_t>(id) < data.tokens.size()) data.tokens[id].type = type;
  };
  set(data.special.bos, TokenType::control);
  set(data.special.eos, TokenType::control);
  set(data.special.unk, TokenType::unknown);
}

void read_tokens(const Metadata& metadata, VocabData& data) {
  const auto texts = metadata.get_strings(kTokens);
  data.tokens.resize(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) data.tokens[i].text = texts[i];

  if (metadata.has(kTypes)) {
    const auto types = metadata.get_vector<int32_t>(kTypes);
    require_length(metadata, kTypes, types.size(), texts.size());
    for (size_t i = 0; i < types.size(); ++i) {
      const bool known = types[i] >= 0 && types[i] <= static_cast<int32_t>(TokenType::byte);
      data.tokens[i].type = known ? static_cast<TokenType>(types[i]) : TokenType::undefined;
    }
  } else if (data.kind == TokenizerKind::spm) {
    guess_spm_types(data);
  }

  if (metadata.get<std::string_view>(kModel) == kRankedPieces) {
    score_by_merges(metadata, data);
  } else if (metadata.has(kScores)) {
    const auto scores = metadata.get_vector<float>(kScores);
    require_length(metadata, kScores, scores.size(), texts.size());
    for (size_t i = 0; i < scores.size(); ++i) data.tokens[i].score = scores[i];
  } else if (data.kind == TokenizerKind::spm) {
    log_warning("{}: no token scores (metadata {}), so all merges have the same rank", metadata.source(),
                kScores);
  }
}

// optional: some files have ids past the vocabulary for roles that generation does not need; those are
// ignored.
enum class Need { exact, optional };

void read_id(const Metadata& metadata, const char* key, Need need, size_t n_tokens, int32_t& id) {
  const auto found = metadata.get_optional<int64_t>(key);
  if (!found) return;
  if (*found >= 0 && static_cast<uint64_t>(*found) < n_tokens) {
    id = static_cast<int32_t>(*found);
    return;
  }
  if (need == Need::exact) {
    metadata.fail(key, format("{}", *found), format("an id below {}", n_tokens));
  }
  if (*found == -1 || *found == UINT32_MAX) return;  // converters write these for "none"
  log_warning("{}: metadata {} is {}, but there are only {} tokens; ignored", metadata.source(), key, *found,
              n_tokens);
}

void read_special_ids(const Metadata& metadata, VocabData& data) {
  const size_t n = metadata.get_strings(kTokens).size();
  if (n == 0) metadata.fail(kTokens, "an empty array", "tokens");
  SpecialIds& ids = data.special;
  if (data.kind == TokenizerKind::spm && n > 2) ids.unk = 0, ids.bos = 1, ids.eos = 2;
  read_id(metadata, "tokenizer.ggml.bos_token_id", Need::exact, n, ids.bos);
  read_id(metadata, "tokenizer.ggml.eos_token_id", Need::exact, n, ids.eos);
  read_id(metadata, "tokenizer.ggml.eot_token_id", Need::exact, n, ids.eot);
  read_id(metadata, "tokenizer.ggml.eom_token_id", Need::exact, n, ids.eom);
  read_id(metadata, "tokenizer.ggml.unknown_token_id", Need::exact, n, ids.unk);
  const std::pair<const char*, int32_t*> optional_ids[] = {
      {"tokenizer.ggml.seperator_token_id", &ids.sep},  // the format's spelling
      {"tokenizer.ggml.padding_token_id", &ids.pad},     {"tokenizer.ggml.mask_token_id", &ids.mask},
      {"tokenizer.ggml.prefix_token_id", &ids.fim_pre},  {"tokenizer.ggml.suffix_token_id", &ids.fim_suf},
      {"tokenizer.ggml.middle_token_id", &ids.fim_mid},  {"tokenizer.ggml.fim_pre_token_id", &ids.fim_pre},
      {"tokenizer.ggml.fim_suf_token_id", &ids.fim_suf}, {"tokenizer.ggml.fim_mid_token_id", &ids.fim_mid},
      {"tokenizer.ggml.fim_pad_token_id", &ids.fim_pad}, {"tokenizer.ggml.fim_rep_token_id", &ids.fim_rep},
      {"tokenizer.ggml.fim_sep_token_id", &ids.fim_sep}};
  for (const auto& [key, id] : optional_ids) read_id(metadata, key, Need::optional, n, *id);
}

Flag read_flag(const Metadata& metadata, const char* key) {
  const auto value = metadata.get_optional<bool>(key);
  if (!value) return Flag::unset;
  return *value ? Flag::on : Flag::off;
}

}  // namespace

VocabData read_vocab_data(const Metadata& metadata) {
  VocabData data;
  data.source = metadata.source();
  data.kind = read_kind(metadata);
  data.pre = metadata.get_or<std::string>("tokenizer.ggml.pre", "");
  read_special_ids(metadata, data);
  read_tokens(metadata, data);
  if (data.kind == TokenizerKind::bpe) {
    const auto merges = metadata.get_strings(kMerges);
    data.merges.assign(merges.begin(), merges.end());
  }
  data.add_bos = read_flag(metadata, "tokenizer.ggml.add_bos_token");
  data.add_eos = read_flag(metadata, "tokenizer.ggml.add_eos_token");
  data.add_space_prefix = read_flag(metadata, "tokenizer.ggml.add_space_prefix");
  data.remove_extra_whitespaces = read_flag(metadata, "tokenizer.ggml.remove_extra_whitespaces");
  apply_strip_rules(data, metadata.get_or<std::string>("general.name", ""));
  return data;
}

std::shared_ptr<const Vocab> load_vocab(const GgufFile& file) {
  return std::make_shared<const Vocab>(read_vocab_data(file.metadata()));
}

}  // namespace tandem
