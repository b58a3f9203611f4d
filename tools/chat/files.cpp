#include "tools/chat/files.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <span>

#include "base/error.h"
#include "base/files.h"
#include "base/output_file.h"
#include "base/text_input.h"
#include "base/utf8.h"
#include "tools/overwrite.h"

namespace tandem::tools {
namespace fs = std::filesystem;

std::string expand_home(const std::string& path) {
  const char* home = std::getenv("HOME");
  if (home == nullptr || (path != "~" && !path.starts_with("~/"))) return path;
  return home + path.substr(1);
}

std::string read_message_file(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  std::string text = read_regular_file(path, kMaxBytes);
  const size_t valid = valid_utf8_prefix(text);
  if (valid != text.size()) {
    throw_error(ErrorCode::bad_file, "{}: found byte 0x{:02x} at offset {}, needed UTF-8",
                printable(path, 4096), static_cast<unsigned>(static_cast<unsigned char>(text[valid])), valid);
  }
  return text;
}

namespace {

void refuse_model(const std::string& path, const ChatEngine& engine) {
  if (!engine.is_model_file(path)) return;
  throw_error(ErrorCode::usage, "{}: is the model in use; write to another file", printable(path, 4096));
}

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(fs::status(path, error));
}

}  // namespace

void check_session_target(const std::string& path, const ChatEngine& engine, Replace replace) {
  refuse_model(path, engine);
  if (!exists(path)) return;
  const std::string name = printable(path, 4096);
  if (kind_of(path) != FileKind::session) {
    throw_error(ErrorCode::usage, "{}: exists and is not a saved session; save to another file", name);
  }
  if (replace == Replace::refused)
    throw_error(ErrorCode::usage, "{}: exists; /save! {} replaces it", name, name);
}

void check_text_target(const std::string& path, const ChatEngine& engine, Replace replace) {
  refuse_model(path, engine);
  if (!exists(path)) return;
  const std::string name = printable(path, 4096);
  const FileKind kind = kind_of(path);
  if (kind != FileKind::text && kind != FileKind::empty) {
    throw_error(ErrorCode::usage, "{}: exists and is not a text file; write to another file", name);
  }
  if (replace == Replace::refused)
    throw_error(ErrorCode::usage, "{}: exists; /export! {} replaces it", name, name);
}

void write_text_file(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

std::string as_markdown(const std::vector<ChatMessage>& messages) {
  std::string text;
  for (const ChatMessage& m : messages) {
    std::string title = m.role;
    title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    text += (text.empty() ? "## " : "\n## ") + title + "\n\n";
    if (!m.reasoning.empty()) {
      text += "<details><summary>Reasoning</summary>\n\n" + m.reasoning + "\n\n</details>\n\n";
    }
    text += m.content + "\n";
  }
  return text;
}

std::vector<std::string> matching_paths(const std::string& typed) {
  const size_t slash = typed.rfind('/');
  const std::string folder = slash == typed.npos ? "" : typed.substr(0, slash + 1);
  const std::string start = typed.substr(folder.size());
  std::vector<std::string> found;
  std::vector<std::string> files;
  try {
    files = files_in(folder.empty() ? "." : expand_home(folder));
  } catch (const Error&) {  // nothing to complete with
  }
  for (std::string& file : files) {
    const fs::path path(std::move(file));
    const std::string name = path.filename();
    if (!name.starts_with(start) || (start.empty() && name.starts_with('.'))) continue;
    std::error_code ignored;
    found.push_back(folder + name + (fs::is_directory(path, ignored) ? "/" : ""));
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace tandem::tools
