// Formats, and strings other than given names.
#include <map>
#include <memory>

#include "sample/json_schema/common.h"

namespace tandem::schema {
namespace {

// Patterns of formats. All their texts are valid; some patterns do not produce every valid text.
constexpr const char* kDate =
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)-02-29)";  // leap years
constexpr const char* kTime =
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[-+](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr const char* kLabel = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?";  // of a host name

std::string format_pattern(const std::string& name) {
  const std::string label = kLabel, octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  const std::string host = "(?:" + label + "\\.){1,3}[a-z]{2,12}";
  if (name == "date") return kDate;
  if (name == "time") return kTime;
  if (name == "date-time") return std::string(kDate) + "T" + kTime;
  if (name == "uuid") return "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}";
  if (name == "email") return "[A-Za-z0-9_+-]{1,20}(?:\\.[A-Za-z0-9_+-]{1,20}){0,2}@" + host;
  if (name == "hostname") return host;
  if (name == "ipv4") return octet + "(?:\\." + octet + "){3}";
  if (name == "ipv6") return "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}";
  if (name == "uri")
    return "https?://" + host + "(?:/[A-Za-z0-9._~-]{0,40}){0,8}(?:\\?[A-Za-z0-9._~=&-]{0,100})?";
  return {};
}

// Splits valid UTF-8 into characters.
std::vector<std::string> split_characters(const std::string& text) {
  std::vector<std::string> out;
  for (const char c : text) {
    if ((c & 0xc0) == 0x80 && !out.empty()) {
      out.back() += c;
    } else {
      out.emplace_back(1, c);
    }
  }
  return out;
}

uint32_t code_point(const std::string& bytes) {
  const auto lead = static_cast<uint8_t>(bytes[0]);
  uint32_t c = bytes.size() == 1 ? lead : lead & (0x7fu >> bytes.size());
  for (size_t i = 1; i < bytes.size(); ++i) c = c << 6 | (static_cast<uint8_t>(bytes[i]) & 0x3f);
  return c;
}

struct NameTree {
  bool ends = false;  // one of the names ends here
  std::map<std::string, size_t> next;
};

}  // namespace

std::string string_of_format(const std::string& format_name, const Place& place) {
  const std::string pattern = format_pattern(format_name);
  if (pattern.empty()) place.fail("format '" + printable(format_name) + "' is not supported");
  return string_matching("^" + pattern + "$", {}, place);
}

// One rule for each prefix of the names: what may follow it. These strings contain no escapes, so each has
// one spelling.
std::vector<NamedRule> string_except(const std::vector<std::string>& names, const std::string& rule) {
  std::vector<NameTree> tree(1);
  for (const std::string& name : names) {
    size_t node = 0;
    for (const std::string& c : split_characters(name)) {
      const auto [child, is_new] = tree[node].next.try_emplace(c, tree.size());
      const size_t target = child->second;
      if (is_new) tree.emplace_back();
      node = target;
    }
    tree[node].ends = true;
  }
  const std::vector<CodeRange> plain = plain_characters();
  const std::string any = char_class(plain) + "*";
  std::vector<NamedRule> rules = {{rule, literal("\"") + " " + rule + "_0 " + literal("\"")}};
  for (size_t i = 0; i < tree.size(); ++i) {
    std::vector<CodeRange> others = complement(plain);
    std::string body = tree[i].ends ? "" : "\"\" | ";
    for (const auto& [c, child] : tree[i].next) {
      const uint32_t point = code_point(c);
      others.push_back({point, point});
      const bool is_plain = point >= 0x20 && c != "\"" && c != "\\";
      if (is_plain) body += literal(c) + " " + rule + "_" + std::to_string(child) + " | ";
    }
    body += char_class(complement(normalized(std::move(others)))) + " " + any;
    rules.push_back({rule + "_" + std::to_string(i), body});
  }
  return rules;
}

}  // namespace tandem::schema
