// What the library's settings are called at the command line. Messages name settings; what the program shows of
// them names flags.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/setting.h"

namespace tandem::tools {

// The flag of a setting: "-ngl", "--kv-offload prefetch".
std::string_view setting_flag(Setting setting);
// As it would be typed: "-ngl 17", "--no-mmap".
std::string flag_text(const SettingValue& setting);
// What an error says, with flags.
std::string message_of(const Error& error);

}  // namespace tandem::tools
