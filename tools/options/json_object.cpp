#include "tools/options/json_object.h"

#include "base/json.h"

namespace tandem::tools {

std::string checked_json_object(const std::string& option, const std::string& text) {
  if (parse_json(text, option, ErrorCode::usage).is_object()) return text;
  throw_error(ErrorCode::usage, "{}: found {}, needed a JSON object such as {{\"enable_thinking\": false}}",
              option, printable(text));
}

}  // namespace tandem::tools
