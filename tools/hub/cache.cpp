#include "tools/hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/text_input.h"
#include "tools/hub/digest.h"

namespace tandem::tools {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPrefix = "models--";

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != text.npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// The folders in a folder, sorted; none if it does not exist.
std::vector<fs::path> folders_in(const std::string& folder) {
  std::vector<fs::path> folders;
  if (!is_folder(folder)) return folders;
  for (std::string& path : files_in(folder)) {
    std::error_code ignored;  // a link that leads nowhere
    fs::path entry(std::move(path));
    if (fs::is_directory(entry, ignored)) folders.push_back(std::move(entry));
  }
  return folders;
}

std::string first_word(const std::string& path) {
  std::istringstream file(read_optional_file(path, 4096));
  std::string word;
  file >> word;
  return word;
}

}  // namespace

std::string HubCache::repo_folder(const std::string& repo) const {
  std::string name = repo;
  replace_all(name, "/", "--");
  return folder_ + "/" + std::string(kPrefix) + name;
}

std::string HubCache::blob_path(const std::string& repo, const std::string& object_id) const {
  return repo_folder(repo) + "/blobs/" + object_id;
}

std::string HubCache::lock_path(const std::string& repo, const std::string& object_id) const {
  const std::string name = fs::path(repo_folder(repo)).filename();
  return folder_ + "/.locks/" + name + "/" + object_id + ".lock";
}

std::string HubCache::snapshot_path(const std::string& repo, const std::string& commit,
                                    const std::string& path) const {
  return repo_folder(repo) + "/snapshots/" + commit + "/" + path;
}

std::vector<std::string> HubCache::commits(const std::string& repo) const {
  std::vector<fs::path> snapshots = folders_in(repo_folder(repo) + "/snapshots");
  const std::string main = first_word(repo_folder(repo) + "/refs/main");
  const auto age_rank = [&](const fs::path& snapshot) {
    std::error_code ignored;
    return std::pair(snapshot.filename() != main,
                     -fs::last_write_time(snapshot, ignored).time_since_epoch().count());
  };
  std::stable_sort(snapshots.begin(), snapshots.end(),
                   [&](const auto& a, const auto& b) { return age_rank(a) < age_rank(b); });
  std::vector<std::string> commits;
  for (const fs::path& snapshot : snapshots) commits.push_back(snapshot.filename());
  return commits;
}

std::vector<RepoFile> HubCache::files(const std::string& repo, const std::string& commit) const {
  const fs::path root = snapshot_path(repo, commit, "");
  std::vector<RepoFile> files;
  for (std::string& name : files_below(root)) {
    const fs::path path(std::move(name));
    std::error_code broken_link;
    if (!fs::is_regular_file(path, broken_link)) continue;
    RepoFile file;
    file.path = path.lexically_relative(root);
    file.n_bytes = fs::file_size(path, broken_link);
    if (fs::is_symlink(path, broken_link)) file.object_id = fs::read_symlink(path, broken_link).filename();
    files.push_back(std::move(file));
  }
  return files;
}

std::vector<std::string> HubCache::repos() const {
  std::vector<std::string> repos;
  for (const fs::path& folder : folders_in(folder_)) {
    std::string name = folder.filename();
    if (!name.starts_with(kPrefix)) continue;
    name.erase(0, kPrefix.size());
    replace_all(name, "--", "/");
    repos.push_back(name);
  }
  return repos;
}

bool HubCache::has(const std::string& repo, const std::string& commit, const RepoFile& file) const {
  std::error_code error;
  const fs::path path = snapshot_path(repo, commit, file.path);
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) != file.n_bytes) return false;
  // A copy, where links were not possible, is known by its size only.
  return !fs::is_symlink(path, error) || fs::read_symlink(path, error).filename() == file.object_id;
}

void HubCache::link(const std::string& repo, const std::string& commit, const RepoFile& file) const {
  const std::string blob = blob_path(repo, file.object_id), path = snapshot_path(repo, commit, file.path);
  const fs::path folder = fs::path(path).parent_path();
  make_folder(folder);
  const fs::path target = fs::path(blob).lexically_relative(folder);
  const std::string temporary = path + ".tmp-" + std::to_string(getpid());
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (!error) return;
  // A file system without links: the hub's client then keeps the content itself in the snapshot.
  if (rename(blob.c_str(), path.c_str()) != 0) {
    throw_error(ErrorCode::io, "{}: cannot link to {}: {}", path, blob, error.message());
  }
}

void HubCache::set_main(const std::string& repo, const std::string& commit) const {
  const std::string path = repo_folder(repo) + "/refs/main";
  if (first_word(path) == commit) return;
  make_folder(fs::path(path).parent_path());
  write_whole_file(path, commit);
}

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw_error(ErrorCode::io, "{}: cannot create this folder: {}", path, error.message());
}

void write_whole_file(const std::string& path, const std::string& text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.publish();
}

FileLock::FileLock(const std::string& path, const std::string& name) {
  make_folder(fs::path(path).parent_path());
  fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot create: {}", path, strerror(errno));
  bool said = false;
  while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return;  // no locks here
    if (!said) log_info("{}: another program is downloading it; waiting", name);
    said = true;
    if (interrupted()) {
      close(fd_);
      throw Error(ErrorCode::interrupted, "");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FileLock::~FileLock() {
  close(fd_);
}

}  // namespace tandem::tools
