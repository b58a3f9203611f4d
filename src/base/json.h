// Parsing of JSON that a stranger may have written: the limits, and the words of an error, in one place.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace tandem {

struct JsonLimits {
  // Destructors, copies and dumps of values recurse, so nesting costs stack.
  size_t max_depth = 200;
  // A value takes at least 16 bytes of memory, whatever its length in the text. The largest tokenizer.json has
  // about 3 million.
  size_t max_values = size_t{1} << 24;
};

// How the text exceeds the limits ("nested more than 200 deep"); empty if it does not. The text need not be valid.
std::string json_excess(std::string_view text, const JsonLimits& limits = {});

// "line 3, column 7: unexpected end of input", from an exception of the library. If the text is a single line, without its number,
// which may be another one in a file.
std::string json_error_text(const std::exception& error, std::string_view text = "\n");

// `Json` is nlohmann::json or nlohmann::ordered_json. Throws Error(code), "SOURCE: invalid JSON: ...". An empty
// source is left out.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, std::string_view source, ErrorCode code = ErrorCode::bad_file,
                const JsonLimits& limits = {}) {
  const std::string prefix = source.empty() ? "" : std::string(source) + ": ";
  if (const std::string excess = json_excess(text, limits); !excess.empty()) {
    throw_error(code, "{}{}", prefix, excess);
  }
  try {
    return Json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    throw_error(code, "{}invalid JSON: {}", prefix, json_error_text(e, text));
  }
}

// The same, and null for text that is invalid or exceeds the limits.
template <class Json = nlohmann::json>
Json parse_json_or_null(std::string_view text) {
  if (!json_excess(text).empty()) return nullptr;
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json(nullptr) : value;
}

}  // namespace tandem
