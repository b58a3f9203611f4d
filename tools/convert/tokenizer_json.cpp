// tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen, ...), or character BPE with byte fallback (Llama 2,
// Gemma, ...).
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/log.h"
#include "tools/convert/tokenizer.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 24;
constexpr std::string_view kSpaceSymbol = "\xe2\x96\x81";  // U+2581

[[noreturn]] void fail(const JsonObject& json, const std::string& what) {
  throw_error(ErrorCode::bad_file, "{}: {}", json.source(), what);
}

// Ids must be 0, 1, ...; added tokens must be able to fill the gaps.
void read_tokens(const JsonObject& model, VocabData& data) {
  const auto vocab = model.object("vocab");
  if (!vocab || vocab->json().empty()) model.fail("vocab", "nothing", "an object of tokens and ids");
  for (const auto& [text, id] : vocab->json().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= kMaxTokens) {
      vocab->fail(text, short_json(id), "an id below " + std::to_string(kMaxTokens));
    }
    const auto i = id.get<size_t>();
    if (i >= data.tokens.size()) data.tokens.resize(i + 1);
    if (!data.tokens[i].text.empty()) {
      vocab->fail(text, "id " + std::to_string(i),
                  "a unique id: this one belongs to \"" + printable(data.tokens[i].text) + "\"");
    }
    data.tokens[i].text = text;
  }
}

// Reads "a b", or ["a", "b"] as in newer files.
std::pair<std::string, std::string> read_merge(const JsonObject& model, const Json& merge, size_t index) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  if (merge.is_string()) {
    const std::string text = merge.get<std::string>();
    const size_t space = text.find(' ', 1);
    if (space != std::string::npos && space + 1 < text.size())
      return {text.substr(0, space), text.substr(space + 1)};
  }
  model.fail("merges", format("{} at {}", short_json(merge), index), "two tokens");
}

struct Merge {
  std::string left, right;
};

// Both halves and the result must be tokens.
std::vector<Merge> read_merges(const JsonObject& model, const VocabData& data) {
  const Json* list = model.find("merges");
  if (!list || !list->is_array() || list->empty()) {
    model.fail("merges", list ? "an empty list" : "nothing", "the merges of BPE");
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < data.tokens.size(); ++i) ids.emplace(data.tokens[i].text, i);
  std::vector<Merge> merges;
  merges.reserve(list->size());
  for (size_t i = 0; i < list->size(); ++i) {
    auto [left, right] = read_merge(model, (*list)[i], i);
    for (const std::string& token : {left, right, left + right}) {
      if (ids.contains(token)) continue;
      model.fail("merges", format("\"{} {}\" at {}", printable(left), printable(right), i),
                 "tokens: \"" + printable(token) + "\" is not one");
    }
    merges.push_back({std::move(left), std::move(right)});
  }
  return merges;
}

bool is_byte_token(std::string_view text) {
  return text.size() == 6 && text.starts_with("<0x") && text.ends_with('>') &&
         text.find_first_not_of("0123456789ABCDEFabcdef", 3) == 5;
}

// SentencePiece merges by the result's score, this file by the pair's rank. They agree when a token's score
// falls with the rank of its first merge, and every pair of tokens that forms a token is a merge.
void set_scores(const JsonObject& model, VocabData& data, const std::vector<Merge>& merges) {
  std::unordered_map<std::string, size_t> rank;
  for (size_t i = 0; i < merges.size(); ++i) rank.emplace(merges[i].left + merges[i].right, i);
  for (size_t id = 0; id < data.tokens.size(); ++id) {
    Token& token = data.tokens[id];
    const auto it = rank.find(token.text);
    token.score = -static_cast<float>(it != rank.end() ? it->second : merges.size() + id);
    if (is_byte_token(token.text)) token.type = TokenType::byte, token.score = 0;
  }
  size_t n_byte = static_cast<size_t>(std::count_if(
      data.tokens.begin(), data.tokens.end(), [](const Token& t) { return t.type == TokenType::byte; }));
  if (n_byte != 0 && n_byte != 256) {
    model.fail("vocab", std::to_string(n_byte) + " byte tokens", "256, \"<0x00>\" to \"<0xFF>\"");
  }
  if (merges.size() > (size_t{1} << 24))
    model.fail("merges", "too many", "fewer than 2^24");  // scores are floats
}

// Returns whether a space is put before the text.
bool prefixes_space(const JsonObject& json) {
  const auto looks = [](const Json& part) {
    const std::string type = part.value("type", "");
    if (type == "Prepend") return part.value("prepend", "") == kSpaceSymbol;
    if (type != "Metaspace") return false;
    if (part.contains("prepend_scheme")) return part["prepend_scheme"] != "never";
    return part.value("add_prefix_space", true);
  };
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    const auto part = json.object(key);
    if (!part) continue;
    if (looks(part->json())) return true;
    for (const char* parts : {"normalizers", "pretokenizers"}) {
      const Json* list = part->find(parts);
      for (const Json& one : list && list->is_array() ? *list : Json::array()) {
        if (one.is_object() && looks(one)) return true;
      }
    }
  }
  return false;
}

// Returns whether spaces become U+2581, as in a SentencePiece vocabulary.
bool has_space_symbol(const JsonObject& json) {
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    const Json* part = json.find(key);
    if (part && part->dump().find(kSpaceSymbol) != std::string::npos) return true;
    if (part && part->dump().find("Metaspace") != std::string::npos) return true;
  }
  return false;
}

void apply_added_tokens(const JsonObject& json, VocabData& data) {
  const Json* list = json.find("added_tokens");
  for (const Json& one : list && list->is_array() ? *list : Json::array()) {
    const JsonObject token = JsonObject::parse(one.dump(), json.source() + ": added_tokens");
    const int64_t id = token.integer("id", 0, static_cast<int64_t>(kMaxTokens) - 1);
    apply_added_token(data, id, token.text("content").value_or(""), token.boolean("special").value_or(false),
                      json.source());
  }
}

// Reads what the template of a single text puts before and after it.
void read_template(const JsonObject& json, const JsonObject& part, VocabData& data) {
  const std::string type = part.text("type").value_or("");
  if (type == "Sequence") {
    const Json* list = part.find("processors");
    for (const Json& one : list && list->is_array() ? *list : Json::array()) {
      read_template(json, JsonObject::parse(one.dump(), json.source() + ": post_processor"), data);
    }
  }
  if (type != "TemplateProcessing") return;
  const Json* single = part.find("single");
  if (!single || !single->is_array()) return;
  data.add_bos = data.add_eos = Flag::off;
  bool before = true;
  for (const Json& item : *single) {
    if (!item.is_object() || item.contains("Sequence")) {
      before = false;
      continue;
    }
    const auto special = item.find("SpecialToken");
    if (special == item.end() || !special->is_object()) continue;
    const std::string text = special->value("id", "");
    const auto token =
        std::find_if(data.tokens.begin(), data.tokens.end(), [&](const Token& t) { return t.text == text; });
    if (token == data.tokens.end()) part.fail("single", "\"" + text + "\"", "a token");
    const auto id = static_cast<int32_t>(token - data.tokens.begin());
    (before ? data.add_bos : data.add_eos) = Flag::on;
    (before ? data.special.bos : data.special.eos) = id;
  }
}

}  // namespace

void apply_added_token(VocabData& data, int64_t id, const std::string& content, bool special,
                       const std::string& source) {
  if (content.empty() || id < 0 || id >= static_cast<int64_t>(kMaxTokens)) {
    throw_error(ErrorCode::bad_file, "{}: added token {} \"{}\": needed an id below {} and a text", source,
                id, printable(content), kMaxTokens);
  }
  const auto index = static_cast<size_t>(id);
  if (index >= data.tokens.size()) data.tokens.resize(index + 1);
  Token& token = data.tokens[index];
  token.text = content;
  if (token.type == TokenType::unknown || token.type == TokenType::byte) return;
  token.type = special ? TokenType::control : TokenType::user_defined;
}

VocabData read_tokenizer_json(const JsonObject& json, const std::string& pre) {
  VocabData data;
  data.source = json.source();
  const auto model = json.object("model");
  if (!model) json.fail("model", "nothing", "a BPE model");
  const std::string type = model->text("type").value_or("BPE");
  if (type != "BPE") model->fail("type", "\"" + type + "\"", "BPE, the only kind supported");
  const bool byte_level = is_byte_level(json);
  if (!byte_level && !has_space_symbol(json)) {
    fail(json, "pre_tokenizer: found neither ByteLevel nor a space symbol, needed one of them");
  }
  data.kind = byte_level ? TokenizerKind::bpe : TokenizerKind::spm;
  read_tokens(*model, data);
  const std::vector<Merge> merges = read_merges(*model, data);
  if (byte_level) {
    data.pre = pre.empty() ? pre_tokenizer_name(json) : pre;
    for (const Merge& merge : merges) data.merges.push_back(merge.left + " " + merge.right);
  } else {
    data.pre = "default";
    set_scores(*model, data, merges);
    data.add_space_prefix = prefixes_space(json) ? Flag::on : Flag::off;
  }
  if (const auto unk = model->text("unk_token")) {
    for (size_t id = 0; id < data.tokens.size(); ++id) {
      if (data.tokens[id].text != *unk) continue;
      data.special.unk = static_cast<int32_t>(id);
      if (!byte_level) data.tokens[id].type = TokenType::unknown;
    }
  }
  apply_added_tokens(json, data);
  if (const auto part = json.object("post_processor")) read_template(json, *part, data);
  return data;
}

}  // namespace tandem::tools
