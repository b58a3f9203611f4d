#include "sample/json_schema/resolve.h"

#include <algorithm>
#include <cmath>

namespace tandem::schema {
namespace {

constexpr size_t kMaxExpansions = 400000;
constexpr int kDeepestReference = 64;

bool is_one_of(std::string_view key, std::initializer_list<std::string_view> keys) {
  return std::find(keys.begin(), keys.end(), key) != keys.end();
}

// Keywords that do not affect validity.
bool is_annotation(std::string_view key) {
  return is_one_of(key,
                   {"title", "description", "default", "examples", "example", "$schema", "$id", "id",
                    "$comment", "$defs", "definitions", "deprecated", "readOnly", "writeOnly", "$anchor"}) ||
         key.starts_with("x-");
}

bool is_supported(std::string_view key) {
  // clang-format off
  return is_one_of(key, {
      "type", "enum", "const", "anyOf", "oneOf",
      "properties", "required", "additionalProperties", "minProperties", "maxProperties",
      "items", "prefixItems", "minItems", "maxItems",
      "minLength", "maxLength", "pattern", "format",
      "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
  // clang-format on
}

bool is_false(const Json& value) {
  return value.is_boolean() && !value.get<bool>();
}

// Decodes a token of a JSON pointer in a URI fragment: "a~1b%20c".
std::string unescape_token(const std::string& token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '~' && i + 1 < token.size() && (token[i + 1] == '0' || token[i + 1] == '1')) {
      out += token[++i] == '0' ? '~' : '/';
    } else if (token[i] == '%' && i + 2 < token.size() &&
               std::isxdigit(static_cast<unsigned char>(token[i + 1])) &&
               std::isxdigit(static_cast<unsigned char>(token[i + 2]))) {
      out += static_cast<char>(std::stoi(token.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      out += token[i];
    }
  }
  return out;
}

std::vector<std::string> type_list(const Json& type, const Place& place) {
  std::vector<std::string> types;
  const auto add = [&](const Json& type_name) {
    const std::string name = type_name.is_string() ? type_name.get<std::string>() : "";
    if (!is_one_of(name, {"null", "boolean", "object", "array", "number", "integer", "string"})) {
      place.fail("type " + printable(type_name.dump()) +
                 " is not one of null, boolean, object, array, number, integer, string");
    }
    if (std::find(types.begin(), types.end(), name) == types.end()) types.push_back(name);
  };
  if (type.is_array()) {
    for (const Json& name : type) add(name);
  } else {
    add(type);
  }
  return types;
}

Json common_types(const Json& a, const Json& b, const Place& place) {
  Json common = Json::array();
  const auto in_b = type_list(b, place);
  const auto has = [&](const std::string& name) {
    return std::find(in_b.begin(), in_b.end(), name) != in_b.end();
  };
  for (const std::string& name : type_list(a, place)) {
    if (has(name) || (name == "integer" && has("number"))) {
      common.push_back(name);
    } else if (name == "number" && has("integer")) {
      common.push_back("integer");
    }
  }
  return common;
}

// Returns the values of enum or const; nullopt for a schema with neither.
std::optional<Json> finite_values(const Json& plain) {
  if (plain.contains("const")) return Json::array({plain["const"]});
  if (plain.contains("enum")) return plain["enum"];
  return std::nullopt;
}

}  // namespace

bool is_of_type(const Json& value, const std::string& type) {
  if (type == "null") return value.is_null();
  if (type == "boolean") return value.is_boolean();
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "number") return value.is_number();
  return value.is_number_integer() ||
         (value.is_number() && std::floor(value.get<double>()) == value.get<double>());
}

std::vector<std::string> types_of(const Json& plain, const Place& place) {
  if (plain.contains("type")) return type_list(plain["type"], place);
  std::vector<std::string> types;
  const auto if_any = [&](const char* type, std::initializer_list<const char*> keys) {
    if (std::any_of(keys.begin(), keys.end(), [&](const char* key) { return plain.contains(key); }))
      types.push_back(type);
  };
  if_any("object", {"properties", "required", "additionalProperties", "minProperties", "maxProperties"});
  if_any("array", {"items", "prefixItems", "minItems", "maxItems"});
  if_any("string", {"minLength", "maxLength", "pattern", "format"});
  if_any("number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
  if (types.empty()) types = {"object", "array", "string", "number", "boolean", "null"};
  return types;
}

std::set<std::string> required_of(const Json& plain, const Place& place) {
  std::set<std::string> names;
  if (!plain.contains("required")) return names;
  const Json& list = plain["required"];
  const bool strings =
      list.is_array() && std::all_of(list.begin(), list.end(), [](const Json& n) { return n.is_string(); });
  if (!strings) place.below("required").fail("needed a list of names");
  for (const Json& name : list) names.insert(name.get<std::string>());
  return names;
}

const Json& SchemaResolver::referred(const Json& reference, const Place& place) const {
  if (!reference.is_string()) place.fail("$ref must be a string");
  const std::string text = reference;
  if (text.empty() || text[0] != '#' || (text.size() > 1 && text[1] != '/')) {
    place.fail("$ref '" + printable(text) + "': only references within the document, #/..., are supported");
  }
  const Json* target = &root_;
  for (size_t start = 1; start < text.size();) {
    const size_t end = std::min(text.find('/', start + 1), text.size());
    const std::string token = unescape_token(text.substr(start + 1, end - start - 1));
    const bool is_index =
        !token.empty() && token.size() < 10 && token.find_first_not_of("0123456789") == token.npos;
    if (target->is_object() && target->contains(token)) {
      target = &(*target)[token];
    } else if (target->is_array() && is_index && std::stoul(token) < target->size()) {
      target = &(*target)[std::stoul(token)];
    } else {
      place.fail("$ref '" + printable(text) + "' does not exist in the document");
    }
    start = end;
  }
  return *target;
}

Json SchemaResolver::flatten(const Json& schema, const Place& place) {
  return flatten(schema, place, 0);
}

Json SchemaResolver::flatten(const Json& schema, const Place& place, int depth) {
  if (depth > kDeepestReference)
    place.fail("$ref and allOf are nested more than 64 times, or refer back to themselves");
  if (++n_expansions_ > kMaxExpansions) place.fail("the schema takes too many expansions");
  if (is_false(schema)) return Json{{"enum", Json::array()}};
  if (schema.is_boolean()) return Json::object();
  if (!schema.is_object()) place.fail("a schema must be an object or a boolean");
  Json plain = Json::object();
  for (const auto& [key, value] : schema.items()) {
    if (is_annotation(key) || key == "$ref" || key == "allOf" || key == "nullable") continue;
    if (key == "uniqueItems" && is_false(value)) continue;
    if (key == "multipleOf" && value == 1 && schema.contains("type") && schema["type"] == "integer") continue;
    if (!is_supported(key)) place.fail("keyword '" + printable(key) + "' is not supported");
    plain[key] = value;
  }
  if (schema.contains("nullable") && schema["nullable"] == true && plain.contains("type")) {
    const auto types = type_list(plain["type"], place);
    plain["type"] = types;
    if (std::find(types.begin(), types.end(), "null") == types.end()) plain["type"].push_back("null");
  }
  if (schema.contains("$ref")) {
    plain = merge(flatten(referred(schema["$ref"], place), place, depth + 1), plain, place);
  }
  if (schema.contains("allOf")) {
    if (!schema["allOf"].is_array()) place.below("allOf").fail("needed a list of schemas");
    for (const Json& part : schema["allOf"]) plain = merge(plain, flatten(part, place, depth + 1), place);
  }
  return plain;
}

Json SchemaResolver::merge(const Json& a, const Json& b, const Place& place) {
  if (a.empty()) return b;
  if (b.empty() || a == b) return a;
  Json merged = a;
  for (const auto& [key, value] : b.items()) {
    if (is_one_of(key, {"properties", "additionalProperties"})) continue;
    if (!merged.contains(key)) {
      merged[key] = value;
    } else if (merged[key] != value) {
      merge_keyword(merged, key, value, place);
    }
  }
  merge_properties(merged, a, b, place);
  return merged;
}

void SchemaResolver::merge_keyword(Json& into, const std::string& key, const Json& value,
                                   const Place& place) {
  Json& mine = into[key];
  if (key == "type") {
    mine = common_types(mine, value, place);
    if (mine.empty()) into["enum"] = Json::array();
  } else if (key == "enum") {
    Json common = Json::array();
    for (const Json& v : mine) {
      if (std::find(value.begin(), value.end(), v) != value.end()) common.push_back(v);
    }
    mine = common;
  } else if (key == "const") {
    into["enum"] = Json::array();  // two different values: nothing is valid
  } else if (key == "required") {
    for (const Json& name : value) {
      if (std::find(mine.begin(), mine.end(), name) == mine.end()) mine.push_back(name);
    }
  } else if (is_one_of(key, {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})) {
    if (mine.is_number() && value.is_number() && value > mine) mine = value;
  } else if (is_one_of(key, {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})) {
    if (mine.is_number() && value.is_number() && value < mine) mine = value;
  } else if (key == "items") {
    mine = Json{{"allOf", Json::array({mine, value})}};
  } else {
    place.fail("allOf, $ref or anyOf combine two different '" + key + "', which is not supported");
  }
}

// A property that only one side lists must also satisfy the other side's additionalProperties.
void SchemaResolver::merge_properties(Json& into, const Json& a, const Json& b, const Place& place) {
  const auto part = [](const Json& schema, const char* key) {
    return schema.contains(key) ? schema[key] : Json();
  };
  const Json a_more = part(a, "additionalProperties"), b_more = part(b, "additionalProperties");
  const Json a_names = part(a, "properties"), b_names = part(b, "properties");
  for (const Json* names : {&a_names, &b_names}) {
    if (!names->is_null() && !names->is_object()) place.below("properties").fail("needed an object");
  }
  Json names = Json::object();
  const auto both = [](const Json& x, const Json& y) {
    if (y.is_null() || y == true || x == y) return x;
    if (x == true) return y;
    return is_false(x) || is_false(y) ? Json(false) : Json{{"allOf", Json::array({x, y})}};
  };
  for (const auto& [name, schema] : a_names.items()) {
    names[name] = both(schema, b_names.contains(name) ? b_names[name] : b_more);
  }
  for (const auto& [name, schema] : b_names.items()) {
    if (!a_names.contains(name)) names[name] = both(schema, a_more);
  }
  if (!a_names.is_null() || !b_names.is_null()) into["properties"] = names;
  if (!b_more.is_null()) into["additionalProperties"] = a_more.is_null() ? b_more : both(a_more, b_more);
}

bool SchemaResolver::exclude_each_other(const Json& a, const Json& b, const Place& place) {
  return excludes(a, b, place, 0) && excludes(b, a, place, 0);
}

// Returns whether no JSON generated for `made` satisfies `other`.
bool SchemaResolver::excludes(const Json& made, const Json& other, const Place& place, int depth) {
  if (depth > 4 || made.contains("anyOf") || made.contains("oneOf") || other.contains("anyOf") ||
      other.contains("oneOf")) {
    return false;
  }
  if (values_differ(made, other, place, depth)) return true;
  const auto types = types_of(made, place);
  const bool objects = types.size() == 1 && types[0] == "object";
  if (!objects || finite_values(made)) return false;
  // Generated objects have only the properties that the schema lists.
  const Json names = made.contains("properties") ? made["properties"] : Json::object();
  const bool closed = (made.contains("properties") && !made.contains("additionalProperties")) ||
                      (made.contains("additionalProperties") && is_false(made["additionalProperties"]));
  const auto required = required_of(made, place);
  for (const std::string& name : required_of(other, place)) {
    if (closed && !names.contains(name) && !required.contains(name)) return true;
  }
  const Json other_names = other.contains("properties") ? other["properties"] : Json::object();
  const bool other_closed = other.contains("additionalProperties") && is_false(other["additionalProperties"]);
  for (const std::string& name : required) {
    if (!other_names.contains(name)) {
      if (other_closed) return true;
    } else if (names.contains(name) &&
               values_differ(flatten(names[name], place.below(name)),
                             flatten(other_names[name], place.below(name)), place, depth + 1)) {
      return true;
    }
  }
  return false;
}

bool SchemaResolver::values_differ(const Json& a, const Json& b, const Place& place, int depth) {
  const auto a_values = finite_values(a), b_values = finite_values(b);
  const auto a_types = types_of(a, place);
  // Without `type`, a keyword applies only to its own type; values of other types pass.
  const bool any_type = !b.contains("type");
  const std::vector<std::string> b_types = any_type ? std::vector<std::string>() : types_of(b, place);
  const auto in_types = [](const Json& value, const std::vector<std::string>& types) {
    return std::any_of(types.begin(), types.end(),
                       [&](const std::string& t) { return is_of_type(value, t); });
  };
  if (a_values && b_values) {
    return std::none_of(a_values->begin(), a_values->end(), [&](const Json& v) {
      return std::find(b_values->begin(), b_values->end(), v) != b_values->end();
    });
  }
  if (b_values) {
    return std::none_of(b_values->begin(), b_values->end(),
                        [&](const Json& v) { return in_types(v, a_types); });
  }
  if (any_type) return false;
  if (a_values)
    return std::none_of(a_values->begin(), a_values->end(),
                        [&](const Json& v) { return in_types(v, b_types); });
  const auto number = [](const std::string& t) { return t == "integer" ? std::string("number") : t; };
  const bool share = std::any_of(a_types.begin(), a_types.end(), [&](const std::string& x) {
    return std::any_of(b_types.begin(), b_types.end(),
                       [&](const std::string& y) { return number(x) == number(y); });
  });
  if (!share) return true;
  const bool objects = a_types == std::vector<std::string>{"object"} && b_types == a_types;
  return depth > 0 && objects && excludes(a, b, place, depth + 1);
}

}  // namespace tandem::schema
