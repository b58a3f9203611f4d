// The input history across runs: one JSON string per line, so that a message may have several lines. Several
// processes may append at once.
#pragma once

#include <string>
#include <vector>

namespace tandem::tools {

inline constexpr size_t kHistoryLines = 1000;

// Returns the newest kHistoryLines, oldest first; shortens a file that has more than twice as many. Skips
// damaged lines; an unreadable file gives an empty history.
std::vector<std::string> load_history(const std::string& path);
void append_history(const std::string& path, const std::string& text);

}  // namespace tandem::tools
