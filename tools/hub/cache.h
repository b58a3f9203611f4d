// The folder in which programs that use the hub keep their downloads, in the layout of the hub's own client:
//
//     models--USER--REPO/blobs/HASH                  contents, by their hash
//     models--USER--REPO/blobs/HASH.incomplete       one that is being downloaded, or was
//     models--USER--REPO/snapshots/COMMIT/PATH       relative links to the blobs
//     models--USER--REPO/refs/main                   the commit that was current when last asked
//     .locks/models--USER--REPO/HASH.lock            held while a blob is downloaded
//
// Repositories, commits, hashes and paths were checked before they come here. Throws Error(io).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/hub/choice.h"

namespace tandem::tools {

class HubCache {
 public:
  explicit HubCache(std::string folder) : folder_(std::move(folder)) {}

  const std::string& folder() const { return folder_; }
  std::string repo_folder(const std::string& repo) const;
  std::string blob_path(const std::string& repo, const std::string& object_id) const;
  std::string lock_path(const std::string& repo, const std::string& object_id) const;
  std::string snapshot_path(const std::string& repo, const std::string& commit,
                            const std::string& path) const;

  // The commit that refs/main names, then those of the other snapshots, the newest first.
  std::vector<std::string> commits(const std::string& repo) const;
  // The complete files of a snapshot.
  std::vector<RepoFile> files(const std::string& repo, const std::string& commit) const;
  std::vector<std::string> repos() const;

  // Whether the snapshot has this file, with this content.
  bool has(const std::string& repo, const std::string& commit, const RepoFile& file) const;
  // Puts the blob of a file into a snapshot.
  void link(const std::string& repo, const std::string& commit, const RepoFile& file) const;
  void set_main(const std::string& repo, const std::string& commit) const;

 private:
  std::string folder_;
};

// Creates a folder with its parents.
void make_folder(const std::string& path);
// Writes a small file that appears complete or not at all.
void write_whole_file(const std::string& path, const std::string& text);

// Held by one process at a time, also against other programs that lock the same file (flock). Waits, with a line that says
// for what; Ctrl-C ends the wait with Error(interrupted). Where the file system has no locks, goes on without.
class FileLock {
 public:
  FileLock(const std::string& path, const std::string& name);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace tandem::tools
