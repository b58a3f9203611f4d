// Files that the user names in a chat.
#pragma once

#include <string>
#include <vector>

#include "engine/conversation.h"
#include "tools/chat/engine.h"

namespace tandem::tools {

// Replaces a leading "~" with the home folder.
std::string expand_home(const std::string& path);
// Reads a text file for a message: UTF-8, at most 16 MiB. Throws Error(io | bad_file).
std::string read_message_file(const std::string& path);
// Whether a file that the user did not name for this before may be replaced.
enum class Replace { refused, allowed };
// Throw Error(usage) if a file must not be written: over the model never, over something that is no saved
// session (or for a text, over no text) never, and over another file only if that is allowed.
void check_session_target(const std::string& path, const ChatEngine& engine, Replace replace);
void check_text_target(const std::string& path, const ChatEngine& engine, Replace replace);
// The file appears only when it is complete. Throws Error(io).
void write_text_file(const std::string& path, const std::string& text);
// The conversation as Markdown.
std::string as_markdown(const std::vector<ChatMessage>& messages);
// Paths that start with `typed`; folders end in "/". A leading "~" stays as typed.
std::vector<std::string> matching_paths(const std::string& typed);

}  // namespace tandem::tools
