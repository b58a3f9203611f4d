// Files that people name while they chat.
#pragma once

#include <string>
#include <vector>

#include "engine/conversation.h"

namespace tandem::tools {

// "~/notes" is in the home folder.
std::string expand_home(const std::string& path);
// The text of a file for a message: UTF-8, 16 MiB at most. Throws Error(io | bad_file).
std::string read_message_file(const std::string& path);
// The file appears when it is complete. Throws Error(io).
void write_text_file(const std::string& path, const std::string& text);
// The conversation as Markdown.
std::string as_markdown(const std::vector<ChatMessage>& messages);
// Paths that begin as `typed` does, folders with a / behind; "~" is kept as it was typed.
std::vector<std::string> matching_paths(const std::string& typed);

}  // namespace tandem::tools
