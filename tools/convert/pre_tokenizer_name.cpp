// Recognizes a pre-tokenizer by its behaviour: compares the rules of tokenizer.json, as regular expressions,
// with the table.
#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/log.h"
#include "text/pretokenizer_table.h"
#include "tools/convert/tokenizer.h"

namespace tandem::tools {
namespace {

struct FoundRules {
  std::vector<SplitRule> rules;
  bool byte_level = false;
};

// The pattern that ByteLevel uses with use_regex: GPT-2's.
const std::string& gpt2_pattern() {
  static const std::string pattern = find_pre_tokenizer("gpt-2")->rules.front().pattern;
  return pattern;
}

std::string read_pattern(const JsonObject& part) {
  const auto pattern = part.object("pattern");
  if (!pattern) part.fail("pattern", "nothing", "a regular expression");
  if (const auto regex = pattern->text("Regex")) return *regex;
  if (const auto text = pattern->text("String")) {
    std::string escaped;
    for (const char c : *text)
      escaped += (std::ispunct(static_cast<unsigned char>(c)) ? "\\" : "") + std::string(1, c);
    return escaped;
  }
  part.fail("pattern", short_json(pattern->json()), "Regex or String");
}

// Adds the rules of one pre-tokenizer.
void add_rules(const JsonObject& part, FoundRules& out) {
  const std::string type = part.text("type").value_or("");
  if (type == "Sequence") {
    const Json* list = part.find("pretokenizers");
    if (!list || !list->is_array()) part.fail("pretokenizers", "nothing", "an array");
    for (const Json& one : *list) {
      add_rules(JsonObject::parse(one.dump(), part.source() + ": pre_tokenizer"), out);
    }
  } else if (type == "Split") {
    const std::string behavior = part.text("behavior").value_or("");
    const bool inverted = part.boolean("invert").value_or(false);
    // Removed and inverted is the same as Isolated if the matches cover everything.
    if (!(behavior == "Isolated" || (behavior == "Removed" && inverted))) {
      part.fail("behavior", "\"" + behavior + "\"", "\"Isolated\"");
    }
    out.rules.push_back({SplitBehavior::isolate, read_pattern(part)});
  } else if (type == "Digits") {
    const bool single = part.boolean("individual_digits").value_or(false);
    out.rules.push_back({SplitBehavior::isolate, single ? R"(\p{N})" : R"(\p{N}+)"});
  } else if (type == "Punctuation") {
    const bool runs = part.text("behavior") == "Contiguous";
    out.rules.push_back({SplitBehavior::isolate, std::string(R"([\p{P}$+<=>^~|`])") + (runs ? "+" : "")});
  } else if (type == "ByteLevel") {
    out.byte_level = true;
    if (part.boolean("add_prefix_space").value_or(false)) {
      log_warning("{}: add_prefix_space is not supported by GGUF: no space is put before a text's first word",
                  part.source());
    }
    if (part.boolean("use_regex").value_or(true))
      out.rules.push_back({SplitBehavior::isolate, gpt2_pattern()});
  } else {
    part.fail("type", "\"" + type + "\"", "Sequence, Split, Digits, Punctuation or ByteLevel");
  }
}

std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

void append_utf8(uint32_t point, std::string& out) {
  const int n = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;  // bytes behind the first
  constexpr uint8_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
  out += static_cast<char>(kFirst[n] | point >> 6 * n);
  for (int i = n - 1; i >= 0; --i) out += static_cast<char>(0x80 | (point >> 6 * i & 63));
}

// Decodes "\x{4e00}" or "\u4e00" at `at`; sets its length, 0 if there is none, or one of ASCII, which may
// have a special meaning in an expression.
uint32_t escaped_character(std::string_view pattern, size_t at, size_t& length) {
  const std::string_view rest = pattern.substr(at + 1);
  const bool braced = rest.starts_with("x{") || rest.starts_with("u{");
  if (!braced && !rest.starts_with('u')) return 0;
  const size_t start = braced ? 2 : 1, end = braced ? rest.find('}') : 5;
  if (end == std::string_view::npos || end > rest.size() || end == start || end - start > 6) return 0;
  const std::string hex(rest.substr(start, end - start));
  if (hex.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) return 0;
  length = 1 + end + braced;
  const unsigned long point = std::stoul(hex, nullptr, 16);
  return point >= 0x80 && point < 0x110000 ? static_cast<uint32_t>(point) : 0;
}

std::string without_escapes(std::string_view pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {
    size_t length = 0;
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
    } else if (const uint32_t point = escaped_character(pattern, i, length)) {
      append_utf8(point, out);
      i += length - 1;
    } else {
      if (pattern[++i] != '/') out += '\\';  // a slash needs no escape
      out += pattern[i];
    }
  }
  return out;
}

// Unifies the spelling of equivalent expressions: characters, contractions, and possessive loops before
// something they cannot match.
std::string canonical(std::string_view pattern) {
  constexpr std::pair<std::string_view, std::string_view> kSpellings[] = {
      {"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"},
      {"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"},
      {"'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)"},
      {"(?:'s|'t|'re|'ve|'m|'ll|'d)", "'s|'t|'re|'ve|'m|'ll|'d"},
      {"?+\\p{L}", "?\\p{L}"},
      {"]++[\\r\\n]", "]+[\\r\\n]"},
      {"\\p{N}{1,3}+", "\\p{N}{1,3}"}};
  std::string out = without_escapes(pattern);
  for (const auto& [spelling, ours] : kSpellings) out = replace_all(std::move(out), spelling, ours);
  return out;
}

bool same_rules(const std::vector<SplitRule>& a, const std::vector<SplitRule>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const SplitRule& x, const SplitRule& y) {
    return x.mode == y.mode && canonical(x.pattern) == canonical(y.pattern);
  });
}

bool normalizes(const JsonObject& json) {
  const auto normalizer = json.object("normalizer");
  if (!normalizer) return false;
  const std::string type = normalizer->text("type").value_or("");
  if (type == "NFC") return true;
  const Json* list = normalizer->find("normalizers");
  if (type == "Sequence" && list && list->is_array() && list->empty()) return false;
  if (type == "Sequence" && list && list->is_array() && list->size() == 1)
    return (*list)[0].value("type", "") == "NFC";
  json.fail("normalizer", short_json(normalizer->json()), "none, or NFC");
}

std::string first_word(std::string_view names) {
  return std::string(names.substr(0, names.find(' ')));
}

}  // namespace

std::string pre_tokenizer_name(const JsonObject& json) {
  FoundRules found;
  const auto part = json.object("pre_tokenizer");
  if (!part) json.fail("pre_tokenizer", "nothing", "ByteLevel, or a Sequence that ends with it");
  add_rules(*part, found);
  const bool nfc = normalizes(json);
  const auto model = json.object("model");
  const bool ignore_merges = model && model->boolean("ignore_merges").value_or(false);
  const PreTokenizerSpec* best = nullptr;
  int best_score = -1;
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    if (!same_rules(found.rules, spec.rules)) continue;
    const int score =
        2 * (spec.ignore_merges == ignore_merges) + ((spec.normalization == Normalization::nfc) == nfc);
    if (score > best_score) best = &spec, best_score = score;
  }
  if (!best) {
    json.fail("pre_tokenizer", short_json(part->json()),
              "a known pre-tokenizer (--pre NAME sets the one to write)");
  }
  if (best->ignore_merges != ignore_merges) {
    log_warning("{}: ignore_merges is {}, but {} for the pre-tokenizer {}: some words may be cut differently",
                json.source(), ignore_merges ? "true" : "false", ignore_merges ? "false" : "true",
                first_word(best->names));
  }
  return first_word(best->names);
}

bool is_byte_level(const JsonObject& json) {
  const auto part = json.object("pre_tokenizer");
  if (!part) return false;
  if (part->text("type") == "ByteLevel") return true;
  const Json* list = part->find("pretokenizers");
  if (!list || !list->is_array()) return false;
  return std::any_of(list->begin(), list->end(), [](const Json& one) {
    return one.is_object() && one.contains("type") && one["type"] == "ByteLevel";
  });
}

}  // namespace tandem::tools
