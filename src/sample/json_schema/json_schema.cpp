#include "sample/json_schema/json_schema.h"

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>

#include "base/json.h"
#include "sample/grammar/grammar.h"
#include "sample/json_schema/resolve.h"

namespace tandem {
namespace schema {
namespace {

constexpr size_t kMaxBytes = 256 << 10;
constexpr size_t kMaxDepth = 200;
constexpr size_t kMaxRules = 20000;
constexpr size_t kMaxBranches = 200;  // of oneOf: each pair is compared
constexpr size_t kMaxGrammarBytes = GrammarLimits::kTextBytes;

// Each nested schema becomes a rule; equal schemas share one. Rules to be made wait in a queue, so deep
// references cost no stack.
class Converter {
 public:
  Converter(const Json& root, const GrammarSource& source)
      : root_(root), source_(source), resolver_(root) {}

  std::string convert() {
    const std::string first = rule_for(root_, {&source_, "#"}, "root");
    TANDEM_CHECK(first == "root");
    while (!waiting_.empty()) {
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      add_rule(next.rule, body_of(next.plain, next.place, next.rule), next.place);
    }
    std::string text;
    for (const auto& [name, body] : rules_) text += name + " ::= " + body + "\n";
    for (const std::string_view name : json_rules_used_) {
      text += std::string(name) + " ::= " + std::string(json_rule(name)) + "\n";
    }
    return text;
  }

 private:
  struct Waiting {
    Json plain;
    Place place;
    std::string rule;
  };

  void add_rule(const std::string& name, std::string body, const Place& place) {
    n_bytes_ += name.size() + body.size() + 6;
    if (n_bytes_ > kMaxGrammarBytes || rules_.size() >= kMaxRules)
      place.fail("the grammar of this schema is too large");
    rules_.emplace_back(name, std::move(body));
  }

  // Uses a predefined rule of JSON.
  std::string use(std::string_view name) {
    for (const std::string_view needed : json_rules_needed(name)) {
      if (std::find(json_rules_used_.begin(), json_rules_used_.end(), needed) == json_rules_used_.end()) {
        json_rules_used_.push_back(needed);
      }
    }
    return std::string(name);
  }

  std::string unique_name(const std::string& hint) {
    std::string name;
    for (const char c : hint.substr(0, 60)) {
      const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      name += plain ? c : '-';
    }
    const std::string base = name;
    while (!names_.insert(name).second) name = base + "-" + std::to_string(++n_named_[base]);
    return name;
  }

  // Returns the name of the rule for a schema; queues it if it is new.
  std::string rule_for(const Json& schema, const Place& place, const std::string& hint) {
    Json plain = resolver_.flatten(schema, place);
    const auto [known, is_new] = rule_of_.try_emplace(plain.dump());
    if (is_new) {
      n_bytes_ += known->first.size();
      if (n_bytes_ > kMaxGrammarBytes || rule_of_.size() > kMaxRules)
        place.fail("the grammar of this schema is too large");
      known->second = unique_name(hint);
      waiting_.push_back({std::move(plain), place, known->second});
    }
    return known->second;
  }

  std::string body_of(const Json& plain, const Place& place, const std::string& rule) {
    for (const char* key : {"anyOf", "oneOf"}) {
      if (plain.contains(key)) return branches(plain, key, place, rule);
    }
    if (plain.contains("enum") || plain.contains("const")) return values(plain, place);
    if (plain.empty()) return use("value");
    std::vector<std::string> alternatives;
    const auto types = types_of(plain, place);
    const bool number = std::find(types.begin(), types.end(), "number") != types.end();
    for (const std::string& type : types) {
      if (type == "integer" && number) continue;
      alternatives.push_back(of_type(type, plain, place, rule));
    }
    if (alternatives.empty()) place.fail("no type is allowed, so no value can be valid");
    return choice(alternatives);
  }

  // Each branch is merged with the keywords next to anyOf or oneOf.
  std::string branches(const Json& plain, const std::string& key, const Place& place,
                       const std::string& rule) {
    const Json& list = plain[key];
    if (!list.is_array() || list.empty()) place.below(key).fail("needed a list of schemas");
    Json siblings = plain;
    siblings.erase(key);
    std::vector<Json> merged;
    for (size_t i = 0; i < list.size(); ++i) {
      const Place branch = place.below(key).below(i);
      merged.push_back(resolver_.merge(siblings, resolver_.flatten(list[i], branch), branch));
    }
    if (key == "oneOf" && merged.size() > kMaxBranches)
      place.fail(format("oneOf of more than {} branches", kMaxBranches));
    if (key == "oneOf") check_one_of(merged, place);
    std::vector<std::string> alternatives;
    for (size_t i = 0; i < merged.size(); ++i) {
      if (allows_nothing(merged[i])) continue;
      alternatives.push_back(rule_for(merged[i], place.below(key).below(i), rule + "-" + std::to_string(i)));
    }
    if (alternatives.empty()) place.fail("no branch of " + key + " can be valid");
    return choice(alternatives);
  }

  void check_one_of(const std::vector<Json>& merged, const Place& place) {
    for (size_t i = 0; i < merged.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        if (resolver_.exclude_each_other(merged[k], merged[i], place)) continue;
        place.below("oneOf").fail(
            format("branches {} and {} may both be valid at once, which a grammar cannot exclude; "
                   "use anyOf if either may be valid",
                   k, i));
      }
    }
  }

  static bool allows_nothing(const Json& plain) { return plain.contains("enum") && plain["enum"].empty(); }

  std::string values(const Json& plain, const Place& place) {
    for (const auto& [key, value] : plain.items()) {
      if (key != "enum" && key != "const" && key != "type")
        place.fail("enum or const together with '" + key + "' is not supported");
    }
    Json list = Json::array();
    if (plain.contains("enum")) {
      if (!plain["enum"].is_array()) place.below("enum").fail("needed a list of values");
      list = plain["enum"];
    } else {
      list.push_back(plain["const"]);
    }
    std::vector<std::string> alternatives;
    for (const Json& value : list) {
      if (plain.contains("const") && plain["const"] != value) continue;
      const auto types = types_of(plain, place);
      const bool fits = !plain.contains("type") ||
                        std::any_of(types.begin(), types.end(),
                                    [&](const std::string& type) { return is_of_type(value, type); });
      if (fits) alternatives.push_back(literal(value.dump()));
    }
    if (alternatives.empty()) place.fail("no value can be valid");
    return choice(alternatives);
  }

  std::string of_type(const std::string& type, const Json& plain, const Place& place,
                      const std::string& rule) {
    if (type == "object") return object(plain, place, rule);
    if (type == "array") return array(plain, place, rule);
    if (type == "string") return string(plain, place);
    if (type == "number" || type == "integer") return number(type, plain, place);
    return use(type);
  }

  std::string number(const std::string& type, const Json& plain, const Place& place) {
    const auto bound = [&](const char* key, bool exclusive) -> std::optional<Bound> {
      if (!plain.contains(key)) return std::nullopt;
      if (!plain[key].is_number()) place.below(key).fail("needed a number");
      return Bound{plain[key].get<double>(), exclusive};
    };
    auto low = bound("minimum", false), high = bound("maximum", false);
    const auto above = bound("exclusiveMinimum", true), below = bound("exclusiveMaximum", true);
    if (above && (!low || above->value >= low->value)) low = above;
    if (below && (!high || below->value <= high->value)) high = below;
    if (!low && !high) return use(type);
    return type == "integer" ? integer_between(low, high, place) : number_between(low, high, place);
  }

  std::string string(const Json& plain, const Place& place) {
    Lengths lengths;
    lengths.min = count(plain, "minLength", place).value_or(0);
    lengths.max = count(plain, "maxLength", place).value_or(kNoLimit);
    check_order(lengths.min, lengths.max, "minLength", "maxLength", place);
    use("char");
    if (plain.contains("pattern") || plain.contains("format")) {
      const char* key = plain.contains("pattern") ? "pattern" : "format";
      if (!plain[key].is_string()) place.below(key).fail("needed a string");
      if (plain.contains("pattern") && plain.contains("format"))
        place.fail("pattern together with format is not supported");
      const std::string text = plain[key];
      if (plain.contains("pattern")) return string_matching(text, lengths, place);
      if (lengths.min > 0 || lengths.max != kNoLimit)
        place.fail("format together with minLength or maxLength is not supported");
      return string_of_format(text, place);
    }
    if (lengths.min == 0 && lengths.max == kNoLimit) return use("string");
    return "\"\\\"\" char" + times(lengths.min, lengths.max) + " \"\\\"\"";
  }

  static std::optional<uint64_t> count(const Json& plain, const char* key, const Place& place) {
    if (!plain.contains(key)) return std::nullopt;
    const Json& value = plain[key];
    if (!is_of_type(value, "integer") || value < 0) place.below(key).fail("needed an integer of at least 0");
    if (value > GrammarLimits::kRepetition) {
      place.below(key).fail(
          format("{}, the limit is {}", printable(value.dump()), GrammarLimits::kRepetition));
    }
    return value.get<uint64_t>();
  }

  static void check_order(uint64_t min, uint64_t max, const char* min_name, const char* max_name,
                          const Place& place) {
    if (min > max) place.fail(std::string(min_name) + " is larger than " + max_name);
  }

  // ---- Arrays ----

  std::string array(const Json& plain, const Place& place, const std::string& rule) {
    const uint64_t min = count(plain, "minItems", place).value_or(0);
    const uint64_t max = count(plain, "maxItems", place).value_or(kNoLimit);
    check_order(min, max, "minItems", "maxItems", place);
    const Json any = true;
    const Json prefix = plain.contains("prefixItems") ? plain["prefixItems"] : Json::array();
    if (!prefix.is_array()) place.below("prefixItems").fail("needed a list of schemas");
    const Json* rest = plain.contains("items")                 ? &plain["items"]
                       : prefix.empty() || min > prefix.size() ? &any
                                                               : nullptr;
    if (rest && rest->is_array())
      place.below("items").fail("a list of schemas is not supported, use prefixItems");
    if (rest && allows_nothing(resolver_.flatten(*rest, place.below("items")))) rest = nullptr;
    const uint64_t n_prefix = std::min<uint64_t>(prefix.size(), max);
    if (!rest && min > n_prefix) place.fail("minItems is larger than the number of items allowed");

    const std::string separator = use("ws") + " \",\" ws ";
    std::string items;  // built from the last to the first
    if (rest && max > n_prefix) {
      const std::string item = rule_for(*rest, place.below("items"), rule + "-item");
      items = rest_of_items(item, separator, n_prefix, min, max);
    }
    for (uint64_t i = n_prefix; i-- > 0;) {
      const std::string item =
          rule_for(prefix[i], place.below("prefixItems").below(i), rule + "-" + std::to_string(i));
      items = (i > 0 ? separator : "") + item + (items.empty() ? "" : " " + items);
      if (i >= min) items = "( " + items + " )?";
    }
    return "\"[\" ws " + (items.empty() ? "" : items + " ws ") + "\"]\"";
  }

  // The items after n_prefix others.
  static std::string rest_of_items(const std::string& item, const std::string& separator, uint64_t n_prefix,
                                   uint64_t min, uint64_t max) {
    const uint64_t at_least = min > n_prefix ? min - n_prefix : 0,
                   at_most = max == kNoLimit ? kNoLimit : max - n_prefix;
    const std::string next = "( " + separator + item + " )";
    if (n_prefix > 0) return next + times(at_least, at_most);
    const uint64_t more = at_most == kNoLimit ? kNoLimit : at_most - 1;
    const std::string all =
        item + (more == 0 ? "" : " " + next + times(at_least > 0 ? at_least - 1 : 0, more));
    return at_least > 0 ? all : "( " + all + " )?";
  }

  // ---- Objects ----

  struct Member {
    std::string text;  // "name": value
    bool required;
  };

  std::string object(const Json& plain, const Place& place, const std::string& rule) {
    const std::string ws = use("ws");
    const std::vector<Member> members = members_of(plain, place, rule);
    const std::string more = more_members(plain, place, rule);
    check_member_count(plain, members, !more.empty(), place);
    const std::string separator = ws + " \",\" ws ";
    const auto first =
        std::find_if(members.begin(), members.end(), [](const Member& m) { return m.required; });
    std::string text;
    if (first != members.end()) {
      // Each optional member before the first required one includes its comma.
      for (auto m = members.begin(); m != first; ++m) text += "( " + m->text + " " + separator + ")? ";
      text += first->text + behind(first + 1, members.end(), separator, more) + " ws ";
    } else if (!members.empty() || !more.empty()) {
      text = "( " + optional_members(members, separator, more, place, rule) + " ws )? ";
    }
    return "\"{\" ws " + text + "\"}\"";
  }

  static std::string behind(std::vector<Member>::const_iterator from, std::vector<Member>::const_iterator to,
                            const std::string& separator, const std::string& more) {
    std::string text;
    for (; from != to; ++from)
      text += from->required ? " " + separator + from->text : " ( " + separator + from->text + " )?";
    if (!more.empty()) text += " ( " + separator + more + " )*";
    return text;
  }

  // One or more of the members; any may be first. A shared rule matches what follows each.
  std::string optional_members(const std::vector<Member>& members, const std::string& separator,
                               const std::string& more, const Place& place, const std::string& rule) {
    std::vector<std::string> alternatives;
    std::string tail = more.empty() ? "" : " ( " + separator + more + " )*";
    if (!more.empty()) alternatives.push_back(more + tail);
    for (auto m = members.rbegin(); m != members.rend(); ++m) {
      alternatives.push_back(m->text + tail);
      if (m + 1 == members.rend()) break;
      const std::string name = unique_name(rule + "-more");
      add_rule(name, "( " + separator + m->text + " )?" + tail, place);
      tail = " " + name;
    }
    std::reverse(alternatives.begin(), alternatives.end());
    return choice(alternatives);
  }

  std::vector<Member> members_of(const Json& plain, const Place& place, const std::string& rule) {
    std::set<std::string> required = required_of(plain, place);
    std::vector<Member> members;
    const auto add = [&](const std::string& name, const Json& schema, const Place& at) {
      const bool is_required = required.erase(name) > 0;
      if (allows_nothing(resolver_.flatten(schema, at))) {
        if (is_required)
          place.fail("property '" + printable(name) + "' is required, but no value is valid for it");
        return;
      }
      const std::string value = rule_for(schema, at, rule + "-" + name);
      members.push_back({literal(Json(name).dump() + ":") + " " + use("ws") + " " + value, is_required});
    };
    const Json names = plain.contains("properties") ? plain["properties"] : Json::object();
    if (!names.is_object()) place.below("properties").fail("needed an object");
    for (const auto& [name, schema] : names.items()) add(name, schema, place.below("properties").below(name));
    const Json any = true;
    const Json& others = plain.contains("additionalProperties") ? plain["additionalProperties"] : any;
    const std::set<std::string> left = required;
    for (const std::string& name : left) add(name, others, place.below("additionalProperties"));
    return members;
  }

  // A member with a name other than those listed; "" if none is allowed.
  std::string more_members(const Json& plain, const Place& place, const std::string& rule) {
    const Json any = true;
    const bool named = plain.contains("properties");
    if (!plain.contains("additionalProperties") && named) return "";
    const Json& others = plain.contains("additionalProperties") ? plain["additionalProperties"] : any;
    if (allows_nothing(resolver_.flatten(others, place.below("additionalProperties")))) return "";
    std::vector<std::string> names;
    if (named) {
      for (const auto& [name, schema] : plain["properties"].items()) names.push_back(name);
    }
    for (const std::string& name : required_of(plain, place)) names.push_back(name);
    std::string key = use("string");
    if (!names.empty()) {
      key = unique_name(rule + "-key");
      for (const NamedRule& r : string_except(names, key)) add_rule(r.name, r.body, place);
    }
    const std::string value = rule_for(others, place.below("additionalProperties"), rule + "-other");
    return key + " \":\" ws " + value;
  }

  // Unlisted keys may repeat, so their number cannot be limited.
  static void check_member_count(const Json& plain, const std::vector<Member>& members, bool has_more,
                                 const Place& place) {
    const uint64_t min = count(plain, "minProperties", place).value_or(0);
    const uint64_t max = count(plain, "maxProperties", place).value_or(kNoLimit);
    const auto n_required = static_cast<uint64_t>(
        std::count_if(members.begin(), members.end(), [](const Member& m) { return m.required; }));
    if (min > n_required)
      place.fail("minProperties above the number of required properties is not supported");
    if (max < members.size() || (has_more && max != kNoLimit)) {
      place.fail("maxProperties below the number of properties is not supported");
    }
  }

  const Json& root_;
  const GrammarSource& source_;
  SchemaResolver resolver_;
  std::deque<Waiting> waiting_;
  std::unordered_map<std::string, std::string> rule_of_;  // plain schema as text -> rule
  std::set<std::string> names_;                           // of the rules
  std::map<std::string, size_t> n_named_;                 // the last number appended to a name
  std::vector<std::pair<std::string, std::string>> rules_;
  std::vector<std::string_view> json_rules_used_;
  size_t n_bytes_ = 0;
};

Json parse_schema(std::string_view text, const GrammarSource& source) {
  const Place place{&source, "#"};
  if (text.size() > kMaxBytes) place.fail(format("{} bytes, the limit is {}", text.size(), kMaxBytes));
  return parse_json<Json>(text, source.name, source.code, {.max_depth = kMaxDepth});
}

}  // namespace
}  // namespace schema

std::string json_schema_to_gbnf(std::string_view text, const GrammarSource& source) {
  const schema::Json root = schema::parse_schema(text, source);
  try {
    return schema::Converter(root, source).convert();
  } catch (const schema::Json::exception& e) {  // a keyword's value has the wrong type
    throw_error(source.code, "{}: a keyword has a wrong value: {}", source.name, json_error_text(e));
  }
}

}  // namespace tandem
