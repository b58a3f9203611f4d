#include "base/files.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace tandem {
namespace {

std::filesystem::file_status status_of(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::none) {
    throw_error(ErrorCode::io, "{}: cannot read: {}", printable(path, 300), error.message());
  }
  return status;
}

}  // namespace

bool file_exists(const std::string& path) {
  return std::filesystem::exists(status_of(path));
}

bool is_folder(const std::string& path) {
  return std::filesystem::is_directory(status_of(path));
}

std::vector<std::string> files_in(const std::string& folder) {
  const auto fail = [&] {
    throw_error(ErrorCode::io, "{}: cannot list the folder: {}", printable(folder, 300), strerror(errno));
  };
  // Not directory_iterator: in GCC's library it ends the program if there is no memory for a path.
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opendir(folder.c_str()), closedir);
  if (!stream) fail();
  std::vector<std::string> paths;
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(stream.get());
    if (entry == nullptr && errno != 0) fail();
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") paths.push_back((std::filesystem::path(folder) / name).string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  std::vector<std::string> folders;  // to list
  if (is_folder(folder)) folders.push_back(folder);
  while (!folders.empty()) {
    const std::string next = std::move(folders.back());
    folders.pop_back();
    for (std::string& path : files_in(next)) {
      std::error_code ignored;  // gone in the meantime
      const auto type = std::filesystem::symlink_status(path, ignored).type();
      (type == std::filesystem::file_type::directory ? folders : files).push_back(std::move(path));
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace tandem
