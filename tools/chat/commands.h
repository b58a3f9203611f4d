// Chat commands: lines that start with a slash.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "engine/conversation.h"
#include "tools/chat/engine.h"
#include "tools/chat/line_editor.h"
#include "tools/chat/settings.h"
#include "tools/chat/view.h"

namespace tandem::tools {

// The state that commands read and change.
struct ChatState {
  ChatEngine& engine;
  ChatView& view;
  ViewSettings& shown;
  std::set<std::string> own_files;  // that this chat has written or read: it may replace them
  std::string attached;             // text of /file, to be sent with the next message
  std::string edit;                 // initial text of the next input line
  std::string unanswered;           // message whose answer was stopped before it began, for /regen
  bool leave = false;
  std::optional<uint64_t> seed = {};  // of the last answer

  Conversation& conversation() { return engine.conversation(); }
};

// The caller's next action.
enum class CommandResult { done, regenerate };

bool is_command(std::string_view line);
// Throws Error; the conversation is then unchanged.
CommandResult run_command(ChatState& chat, const std::string& line);
// The file that a command names; nothing for other lines.
struct CommandFile {
  std::string path;
  bool writes = false;
};
std::optional<CommandFile> file_of_command(const std::string& line);
Completion complete_command(const std::string& line);

}  // namespace tandem::tools
