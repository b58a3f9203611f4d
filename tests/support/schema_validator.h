// A small validator for the part of JSON Schema that the tests use, written from the specification and
// independent of the code under test. Throws std::logic_error for an unknown keyword.
#pragma once

#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>
#include <stdexcept>
#include <string>

namespace tandem::test {

class SchemaValidator {
 public:
  using Json = nlohmann::json;
  explicit SchemaValidator(Json root) : root_(std::move(root)) {}

  bool valid(const Json& value) const { return valid(root_, value); }

 private:
  static size_t n_characters(const std::string& text) {
    size_t n = 0;
    for (const char c : text) n += (c & 0xc0) != 0x80;
    return n;
  }

  static bool has_type(const std::string& type, const Json& v) {
    if (type == "integer")
      return v.is_number_integer() || (v.is_number() && std::floor(v.get<double>()) == v.get<double>());
    if (type == "number") return v.is_number();
    if (type == "string") return v.is_string();
    if (type == "boolean") return v.is_boolean();
    if (type == "null") return v.is_null();
    if (type == "array") return v.is_array();
    return type == "object" && v.is_object();
  }

  static bool has_any_type(const Json& types, const Json& v, bool nullable) {
    if (nullable && v.is_null()) return true;
    if (types.is_string()) return has_type(types, v);
    for (const auto& type : types) {
      if (has_type(type, v)) return true;
    }
    return false;
  }

  int n_valid(const Json& schemas, const Json& v) const {
    int n = 0;
    for (const auto& schema : schemas) n += valid(schema, v);
    return n;
  }

  bool valid(const Json& schema, const Json& v) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [key, s] : schema.items()) {
      if (!keyword_holds(schema, key, s, v)) return false;
    }
    return true;
  }

  bool keyword_holds(const Json& schema, const std::string& key, const Json& s, const Json& v) const {
    if (key == "$defs" || key == "definitions" || key == "title" || key == "description" || key == "nullable")
      return true;
    if (key == "$ref") return valid(root_.at(Json::json_pointer(s.get<std::string>().substr(1))), v);
    if (key == "type") return has_any_type(s, v, schema.value("nullable", false));
    if (key == "const") return v == s;
    if (key == "enum") return std::find(s.begin(), s.end(), v) != s.end();
    if (key == "anyOf") return n_valid(s, v) >= 1;
    if (key == "oneOf") return n_valid(s, v) == 1;
    if (key == "allOf") return n_valid(s, v) == static_cast<int>(s.size());
    if (key == "minimum") return !v.is_number() || v.get<double>() >= s.get<double>();
    if (key == "maximum") return !v.is_number() || v.get<double>() <= s.get<double>();
    if (key == "exclusiveMinimum") return !v.is_number() || v.get<double>() > s.get<double>();
    if (key == "exclusiveMaximum") return !v.is_number() || v.get<double>() < s.get<double>();
    if (key == "minLength") return !v.is_string() || n_characters(v) >= s;
    if (key == "maxLength") return !v.is_string() || n_characters(v) <= s;
    if (key == "pattern")
      return !v.is_string() || std::regex_search(v.get<std::string>(), std::regex(s.get<std::string>()));
    if (key == "format") return !v.is_string() || has_format(s, v);
    if (key == "minItems") return !v.is_array() || v.size() >= s;
    if (key == "maxItems") return !v.is_array() || v.size() <= s;
    if (key == "prefixItems" || key == "items") return !v.is_array() || items_hold(schema, v);
    if (key == "required") {
      return !v.is_object() ||
             std::all_of(s.begin(), s.end(), [&](const Json& n) { return v.contains(n.get<std::string>()); });
    }
    if (key == "properties" || key == "additionalProperties")
      return !v.is_object() || members_hold(schema, v);
    throw std::logic_error("the validator does not know " + key);
  }

  bool items_hold(const Json& schema, const Json& v) const {
    const Json prefix = schema.value("prefixItems", Json::array()), rest = schema.value("items", Json(true));
    for (size_t i = 0; i < v.size(); ++i) {
      if (!valid(i < prefix.size() ? prefix[i] : rest, v[i])) return false;
    }
    return true;
  }

  bool members_hold(const Json& schema, const Json& v) const {
    const Json named = schema.value("properties", Json::object()),
               others = schema.value("additionalProperties", Json(true));
    for (const auto& [name, value] : v.items()) {
      if (!valid(named.contains(name) ? named[name] : others, value)) return false;
    }
    return true;
  }

  static bool has_format(const std::string& format, const std::string& text) {
    const std::string date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
    const std::string time =
        "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]+)?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])";
    const std::string octet = "(25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])";
    const std::string host = "[a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*";
    const auto matches = [&](const std::string& pattern) {
      return std::regex_match(text, std::regex(pattern));
    };
    if (format == "date") return matches(date) && day_exists(text);
    if (format == "time") return matches(time);
    if (format == "date-time") return matches(date + "T" + time) && day_exists(text);
    if (format == "uuid") return matches("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}");
    if (format == "email") return matches("[A-Za-z0-9_.+-]+@" + host);
    if (format == "ipv4") return matches(octet + "(\\." + octet + "){3}");
    if (format == "ipv6") return matches("[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}");
    if (format == "hostname") return matches(host);
    if (format == "uri") return matches("https?://" + host + "(/[^?]*)?(\\?.*)?");
    throw std::logic_error("the validator does not know format " + format);
  }

  static bool day_exists(const std::string& date) {
    const int year = std::stoi(date.substr(0, 4)), month = std::stoi(date.substr(5, 2)),
              day = std::stoi(date.substr(8, 2));
    const bool leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    const int days[] = {31, leap ? 29 : 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return day <= days[month - 1];
  }

  Json root_;
};

}  // namespace tandem::test
