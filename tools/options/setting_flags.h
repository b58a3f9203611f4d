// The flags of the library's settings. Messages of the library name settings; the program prints flags.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"
#include "base/setting.h"

namespace tandem::tools {

// The flag of a setting: "-ngl", "--kv-offload prefetch".
std::string_view setting_flag(Setting setting);
// As typed: "-ngl 17", "--no-mmap".
std::string flag_text(const SettingValue& setting);
// The message of an error, with flags.
std::string message_of(const Error& error);

}  // namespace tandem::tools
