// What was typed in earlier runs: a JSON string a line, so that messages of several lines stay whole. Several
// programs may append at once.
#pragma once

#include <string>
#include <vector>

namespace tandem::tools {

inline constexpr size_t kHistoryLines = 1000;

// The newest kHistoryLines, oldest first; shortens a file that has grown to twice that. A file that cannot be
// read, and lines that are damaged, are nothing.
std::vector<std::string> load_history(const std::string& path);
void append_history(const std::string& path, const std::string& text);

}  // namespace tandem::tools
