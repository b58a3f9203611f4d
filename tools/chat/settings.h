// The settings that /set changes in a running chat, named like the options.
#pragma once

#include <string>
#include <vector>

#include "engine/conversation.h"
#include "tools/chat/view.h"

namespace tandem::tools {

// Parses "show", "hide" or "off". Throws Error(usage).
ShowReasoning parse_reasoning(const std::string& option, const std::string& text);
const char* reasoning_name(ShowReasoning show);

struct ChatSettings {
  ConversationOptions& conversation;
  ViewSettings& view;
};

std::vector<std::string> setting_names();
// Its value as text. "-" and "_" are equivalent. Throws Error(usage) for an unknown name.
std::string setting_value(const ChatSettings& settings, const std::string& name);
// One line per setting, such as "temp 0.8".
std::string settings_table(const ChatSettings& settings);
// Throws Error(usage) for an invalid name or value, and then changes nothing.
void change_setting(const ChatSettings& settings, const std::string& name, const std::string& value);

}  // namespace tandem::tools
