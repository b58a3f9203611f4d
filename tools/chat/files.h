// Files that the user names in a chat.
#pragma once

#include <string>
#include <vector>

#include "engine/conversation.h"

namespace tandem::tools {

// Replaces a leading "~" with the home folder.
std::string expand_home(const std::string& path);
// Reads a text file for a message: UTF-8, at most 16 MiB. Throws Error(io | bad_file).
std::string read_message_file(const std::string& path);
// The file appears only when it is complete. Throws Error(io).
void write_text_file(const std::string& path, const std::string& text);
// The conversation as Markdown.
std::string as_markdown(const std::vector<ChatMessage>& messages);
// Paths that start with `typed`; folders end in "/". A leading "~" stays as typed.
std::vector<std::string> matching_paths(const std::string& typed);

}  // namespace tandem::tools
