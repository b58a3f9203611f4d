// Recognizes a pre-tokenizer by what it does: the steps of tokenizer.json, as regular expressions, against the table.
#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "text/pretokenizer_table.h"
#include "tools/convert/tokenizer.h"

namespace tandem::tools {
namespace {

struct Steps {
  std::vector<PreTokenizerStep> steps;
  bool byte_level = false;
};

// What ByteLevel cuts by when it is asked to cut: the expression of GPT-2.
const std::string& gpt2_pattern() {
  static const std::string pattern = find_pre_tokenizer("gpt-2")->steps.front().pattern;
  return pattern;
}

std::string read_pattern(const JsonObject& part) {
  const auto pattern = part.object("pattern");
  if (!pattern) part.fail("pattern", "nothing", "an expression");
  if (const auto regex = pattern->text("Regex")) return *regex;
  if (const auto text = pattern->text("String")) return *text;
  part.fail("pattern", short_json(pattern->json()), "Regex or String");
}

// Adds what one pre-tokenizer does.
void add_steps(const JsonObject& part, Steps& out) {
  const std::string type = part.text("type").value_or("");
  if (type == "Sequence") {
    const Json* list = part.find("pretokenizers");
    if (!list || !list->is_array()) part.fail("pretokenizers", "nothing", "an array");
    for (const Json& one : *list) {
      add_steps(JsonObject::parse(one.dump(), part.source() + ": pre_tokenizer"), out);
    }
  } else if (type == "Split") {
    const std::string behavior = part.text("behavior").value_or("");
    const bool inverted = part.boolean("invert").value_or(false);
    // Removed and inverted is another way to say that the matches are the pieces, where everything matches.
    if (!(behavior == "Isolated" || (behavior == "Removed" && inverted))) {
      part.fail("behavior", "\"" + behavior + "\"", "\"Isolated\"");
    }
    out.steps.push_back({SplitStep::isolate, read_pattern(part)});
  } else if (type == "Digits") {
    const bool single = part.boolean("individual_digits").value_or(false);
    out.steps.push_back({SplitStep::isolate, single ? R"(\p{N})" : R"(\p{N}+)"});
  } else if (type == "Punctuation") {
    out.steps.push_back({SplitStep::isolate, R"([\p{P}$+<=>^~|`])"});
  } else if (type == "ByteLevel") {
    out.byte_level = true;
    if (part.boolean("add_prefix_space").value_or(false)) {
      log_warning("%s: add_prefix_space has no counterpart in GGUF: a text's first word is taken as it stands",
                  part.source().c_str());
    }
    if (part.boolean("use_regex").value_or(true)) out.steps.push_back({SplitStep::isolate, gpt2_pattern()});
  } else {
    part.fail("type", "\"" + printable(type) + "\"", "Sequence, Split, Digits, Punctuation or ByteLevel");
  }
}

std::string replace_all(std::string text, std::string_view what, std::string_view with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size()) {
    text.replace(at, what.size(), with);
  }
  return text;
}

// One spelling for what expressions say in several: escapes of characters, the contractions, possessive loops that
// change nothing, and a group around the whole.
std::string canonical(std::string pattern) {
  std::string out;
  for (size_t i = 0; i < pattern.size(); ++i) {  // \x{41} and \u0041 to the character, \/ to /
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      out += pattern[i];
      continue;
    }
    const char c = pattern[i + 1];
    size_t digits = 0, end = 0;
    if ((c == 'x' || c == 'u') && i + 2 < pattern.size() && pattern[i + 2] == '{') {
      digits = i + 3;
      end = std::min(pattern.find('}', digits), pattern.size());
    } else if (c == 'u' && i + 6 <= pattern.size()) {
      digits = i + 2;
      end = i + 6;
    }
    const std::string hex = digits < end ? pattern.substr(digits, end - digits) : "";
    if (!hex.empty() && hex.size() <= 6 && hex.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos) {
      const auto point = static_cast<uint32_t>(std::stoul(hex, nullptr, 16));
      if (point >= 0x80 && point < 0x110000) {
        if (point < 0x800) {
          out += static_cast<char>(0xc0 | point >> 6);
        } else {
          if (point < 0x10000) {
            out += static_cast<char>(0xe0 | point >> 12);
          } else {
            out += static_cast<char>(0xf0 | point >> 18);
            out += static_cast<char>(0x80 | (point >> 12 & 63));
          }
          out += static_cast<char>(0x80 | (point >> 6 & 63));
        }
        out += static_cast<char>(0x80 | (point & 63));
        i = end - (pattern[i + 2] == '{' ? 0 : 1);
        continue;
      }
    }
    if (c != '/') out += '\\';
    out += c;
    ++i;
  }
  out = replace_all(out, "(?i:[sdmt]|ll|ve|re)", "(?i:[sdmt]|ll|ve|re)");
  out = replace_all(out, "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
  out = replace_all(out, "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
  out = replace_all(out, "'(?i:[sdmt]|ll|ve|re)", "(?i:'s|'t|'re|'ve|'m|'ll|'d)");
  out = replace_all(out, "(?:'s|'t|'re|'ve|'m|'ll|'d)", "'s|'t|'re|'ve|'m|'ll|'d");
  // Where what follows cannot match what the loop has, giving nothing back changes nothing.
  for (const auto& [possessive, plain] : {std::pair("?+\\p{L}", "?\\p{L}"), {"]++[\\r\\n]", "]+[\\r\\n]"},
                                          {"\\p{N}{1,3}+", "\\p{N}{1,3}"}}) {
    out = replace_all(out, possessive, plain);
  }
  return out;
}

bool same_steps(const std::vector<PreTokenizerStep>& a, const std::vector<PreTokenizerStep>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PreTokenizerStep& x, const PreTokenizerStep& y) {
    return x.how == y.how && canonical(x.pattern) == canonical(y.pattern);
  });
}

bool normalizes(const JsonObject& json) {
  const auto normalizer = json.object("normalizer");
  if (!normalizer) return false;
  const std::string type = normalizer->text("type").value_or("");
  if (type == "NFC") return true;
  const Json* list = normalizer->find("normalizers");
  if (type == "Sequence" && list && list->is_array() && list->empty()) return false;
  if (type == "Sequence" && list && list->is_array() && list->size() == 1) return (*list)[0].value("type", "") == "NFC";
  json.fail("normalizer", short_json(normalizer->json()), "none, or NFC");
}

std::string first_word(std::string_view names) { return std::string(names.substr(0, names.find(' '))); }

}  // namespace

std::string pre_tokenizer_name(const JsonObject& json) {
  Steps found;
  const auto part = json.object("pre_tokenizer");
  if (!part) json.fail("pre_tokenizer", "nothing", "ByteLevel, or a Sequence that ends with it");
  add_steps(*part, found);
  const bool nfc = normalizes(json);
  const auto model = json.object("model");
  const bool ignore_merges = model && model->boolean("ignore_merges").value_or(false);
  const PreTokenizerSpec* best = nullptr;
  int best_score = -1;
  for (const PreTokenizerSpec& spec : all_pre_tokenizers()) {
    if (!same_steps(found.steps, spec.steps)) continue;
    const int score = 2 * (spec.ignore_merges == ignore_merges) + ((spec.normalization == Normalization::nfc) == nfc);
    if (score > best_score) best = &spec, best_score = score;
  }
  if (!best) {
    json.fail("pre_tokenizer", short_json(part->json()),
              "one that GGUF has a name for (--pre NAME says which one to write)");
  }
  if (best->ignore_merges != ignore_merges) {
    log_warning("%s: ignore_merges is %s, but is %s for the pre-tokenizer %s: some words may be cut differently",
                json.source().c_str(), ignore_merges ? "true" : "false", ignore_merges ? "false" : "true",
                first_word(best->names).c_str());
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
