#include "tools/options/json_object.h"

#include <nlohmann/json.hpp>

#include "base/json_fault.h"

namespace tandem::tools {

std::string checked_json_object(const std::string& option, const std::string& text) {
  constexpr const char* kExample = "needed a JSON object such as {\"enable_thinking\": false}";
  try {
    if (nlohmann::json::parse(text).is_object()) return text;
  } catch (const nlohmann::json::exception& e) {
    throw_error(ErrorCode::usage, "{}: {}; {}", option, json_fault(e), kExample);
  }
  throw_error(ErrorCode::usage, "{}: found {}, {}", option, printable(text), kExample);
}

}  // namespace tandem::tools
