#include "base/files.h"

#include <algorithm>
#include <filesystem>
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
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path().string());
  }
  if (error) {
    throw_error(ErrorCode::io, "{}: cannot list the folder: {}", printable(folder, 300), error.message());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace tandem
