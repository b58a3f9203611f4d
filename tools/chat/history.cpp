#include "tools/chat/history.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/json.h"
#include "base/log.h"
#include "base/text_input.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxBytes = size_t{64} << 20;

// Only the owner can read the file: conversations are private.
bool write_lines(const std::string& path, int flags, const std::string& lines) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | flags, 0600);
  if (file < 0) return false;
  struct stat status {};
  const bool is_regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const bool all =
      is_regular && write(file, lines.data(), lines.size()) == static_cast<ssize_t>(lines.size());
  return close(file) == 0 && all;
}

std::string encoded(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

std::vector<std::string> load_history(const std::string& path) {
  std::vector<std::string> texts;
  std::istringstream in(read_optional_file(path, kMaxBytes));
  for (std::string line; std::getline(in, line);) {
    const auto text = parse_json_or_null(line);
    if (text.is_string()) texts.push_back(text.get<std::string>());
  }
  const bool shorten = texts.size() > 2 * kHistoryLines;
  if (texts.size() > kHistoryLines) texts.erase(texts.begin(), texts.end() - kHistoryLines);
  if (!shorten) return texts;
  std::string all;
  for (const std::string& text : texts) all += encoded(text);
  const std::string temporary = path + ".new";
  if (write_lines(temporary, O_TRUNC, all)) (void)!rename(temporary.c_str(), path.c_str());
  return texts;
}

void append_history(const std::string& path, const std::string& text) {
  if (!write_lines(path, O_APPEND, encoded(text))) log_verbose("{}: cannot write the history", path);
}

}  // namespace tandem::tools
