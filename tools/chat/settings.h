// What /set changes in a running chat, by the names of the options.
#pragma once

#include <string>
#include <vector>

#include "engine/conversation.h"
#include "tools/chat/view.h"

namespace tandem::tools {

// "show", "hide", "off". Throws Error(usage).
ShowReasoning parse_reasoning(const std::string& option, const std::string& text);
const char* reasoning_name(ShowReasoning show);

struct ChatSettings {
  ConversationOptions& conversation;
  ShowReasoning& reasoning;
};

std::vector<std::string> setting_names();
// "temp 0.8", a line a setting.
std::string settings_table(const ChatSettings& settings);
// Throws Error(usage) for a name or value that makes no sense; then nothing has changed. "-" and "_" are the
// same.
void change_setting(const ChatSettings& settings, const std::string& name, const std::string& value);

}  // namespace tandem::tools
