// Options whose value is a JSON object.
#pragma once

#include <string>

namespace tandem::tools {

// Returns the text if it is one. Throws Error(usage) that starts with the option's name.
std::string checked_json_object(const std::string& option, const std::string& text);

}  // namespace tandem::tools
