#include "text/special_tokens.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace tandem {
namespace {

struct RoleTexts {
  int32_t SpecialIds::*role;
  std::vector<std::string_view> texts;  // in order of preference
};

const std::vector<RoleTexts>& role_texts() {
  static const std::vector<RoleTexts> table = {
      {&SpecialIds::eot,
       {"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>",
        "_<EOT>", "[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"}},
      {&SpecialIds::eom, {"<|eom_id|>"}},
      {&SpecialIds::fim_pre,
       {"<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>",
        "<|code_prefix|>", "<|prefix|>"}},
      {&SpecialIds::fim_suf,
       {"<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>",
        "<|code_suffix|>", "<|suffix|>"}},
      {&SpecialIds::fim_mid,
       {"<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>",
        "<|code_middle|>", "<|middle|>"}},
      {&SpecialIds::fim_pad, {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"}},
      {&SpecialIds::fim_rep, {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"}},
      {&SpecialIds::fim_sep, {"<|file_sep|>"}},
  };
  return table;
}

// clang-format off
constexpr std::string_view kEndOfGeneration[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["};
// clang-format on

// Ordinary text in some vocabularies, so they count only if the file marks them as special.
constexpr std::string_view kEndOfGenerationIfSpecial[] = {"</s>", "<eos>"};

// gpt-oss: marks of the reply's structure that clients must see.
constexpr std::string_view kShownMarkers[] = {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"};

Token& token_at(VocabData& data, int32_t id) {
  return data.tokens[id];
}

bool is_plain(TokenType type) {
  return type == TokenType::normal || type == TokenType::undefined || type == TokenType::unused;
}

}  // namespace

void find_special_roles(VocabData& data, const StringIndex& index) {
  for (const auto& [role, texts] : role_texts()) {
    if (data.special.*role != kNoToken) continue;
    for (const std::string_view text : texts) {
      const int32_t id = index.find(text);
      if (id == StringIndex::kAbsent) continue;
      data.special.*role = id;
      token_at(data, id).type = TokenType::control;
      break;
    }
  }
}

std::vector<int32_t> find_end_of_generation(VocabData& data, const StringIndex& index) {
  std::vector<int32_t> ids;
  const SpecialIds& special = data.special;
  for (const int32_t id :
       {special.eos, special.eot, special.eom, special.fim_pad, special.fim_rep, special.fim_sep}) {
    if (id != kNoToken) ids.push_back(id);
  }
  const auto add = [&](std::string_view text, bool only_if_special) {
    const int32_t id = index.find(text);
    if (id == StringIndex::kAbsent || (only_if_special && is_plain(token_at(data, id).type))) return;
    ids.push_back(id);
    token_at(data, id).type = TokenType::control;
  };
  for (const std::string_view text : kEndOfGeneration) add(text, false);
  for (const std::string_view text : kEndOfGenerationIfSpecial) add(text, true);

  for (const std::string_view text : kShownMarkers) {
    const int32_t id = index.find(text);
    if (id != StringIndex::kAbsent) token_at(data, id).type = TokenType::user_defined;
  }
  const auto has = [&](std::string_view text) { return index.find(text) != StringIndex::kAbsent; };
  const auto drop = [&](std::string_view text, TokenType type) {
    const int32_t id = index.find(text);
    if (id == StringIndex::kAbsent || std::erase(ids, id) == 0) return;
    token_at(data, id).type = type;
  };
  // In replies of several messages, "<|end|>" ends a message, not the reply.
  const bool calls = has("<|call|>") || has("<|calls|>");
  if (calls && (has("<|return|>") || has("<|flush|>"))) drop("<|end|>", TokenType::user_defined);
  if (has("<|tool_response>")) drop("</s>", TokenType::normal);

  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

void apply_strip_rules(VocabData& data, std::string_view model_name) {
  std::string name(model_name);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return;
  for (Token& token : data.tokens) {
    token.strip_right = !is_plain(token.type) && token.text != "<unk>" && token.text != "<s>" &&
                        token.text != "<|endoftext|>";
  }
}

}  // namespace tandem
