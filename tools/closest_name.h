// Names that a user may have meant. Pure functions.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem::tools {

// Whether two names differ only in upper case, spaces and punctuation.
bool is_same_name(std::string_view a, std::string_view b);

// Returns the names most like `name`, the best first, at most `limit`: those that begin with it or contain it, and
// those a few letters away. Upper case, spaces and punctuation do not count.
std::vector<std::string_view> closest_names(std::string_view name, std::span<const std::string_view> known,
                                            size_t limit = 3);

// Throws Error(usage): "WHAT: no 'name'; did you mean A, B or C?", or with all names if none is near. `more`, if not
// empty, ends the message: "; more".
[[noreturn]] void throw_unknown_name(const char* what, std::string_view name,
                                     std::span<const std::string_view> known, const std::string& more = "");

}  // namespace tandem::tools
