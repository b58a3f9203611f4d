// Opening files that a confined program may not open itself (see the room sandbox) but may have opened for it.
#pragma once

#include <functional>
#include <string>

namespace tandem {

// A descriptor to read the file with, or -1 and errno. `flags` are more flags of open(), such as O_NONBLOCK. The process
// opens the file itself if it may, else it asks whom set_open_elsewhere() named.
int open_for_reading(const std::string& path, int flags = 0);

// Returns a descriptor, or -1 and errno. Not thread-safe.
using OpenElsewhere = std::function<int(const std::string& path, int flags)>;
void set_open_elsewhere(OpenElsewhere open);

}  // namespace tandem
