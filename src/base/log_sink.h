// Messages for a program that embeds the library, instead of lines on stderr.
#pragma once

#include <functional>
#include <string>

#include "base/log.h"

namespace tandem {

// Called with messages up to the set level, one at a time, from any thread. It must not log.
using LogSink = std::function<void(LogLevel level, const std::string& message)>;
// Empty: stderr.
void set_log_sink(LogSink sink);

}  // namespace tandem
