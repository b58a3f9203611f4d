// The lines that start with a slash: a table of commands and what each does to the chat.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "engine/conversation.h"
#include "tools/chat/line_editor.h"
#include "tools/chat/settings.h"
#include "tools/chat/view.h"

namespace tandem::tools {

// A chat as commands see it.
struct ChatState {
  Conversation& conversation;
  ChatView& view;
  ShowReasoning& reasoning;
  std::string attached;    // text of /file, which goes with the next message
  std::string edit;        // what stands in the next line already
  std::string unanswered;  // a message whose answer was stopped before it began, for /regen
  bool leave = false;
};

// What a command wants to be done by the caller.
enum class CommandResult { done, regenerate };

bool is_command(std::string_view line);
// Throws what commands throw; the conversation is then as it was.
CommandResult run_command(ChatState& chat, const std::string& line);
Completion complete_command(const std::string& line);

}  // namespace tandem::tools
