// How long ago something was, for lists.
#pragma once

#include <cstdint>
#include <string>

namespace tandem::tools {

// "3 minutes ago", "1 day ago", "2026-01-15"; `then` in seconds since 1970.
std::string time_ago(int64_t then);

}  // namespace tandem::tools
