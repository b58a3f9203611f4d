#include "tools/hub/downloads.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "tools/hub/model_name.h"

namespace tandem::tools {
namespace fs = std::filesystem;
namespace {

int64_t last_used(const std::string& path) {
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return 0;
  return std::max<int64_t>(status.st_atime, status.st_mtime);
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

void set_used(DownloadedModel& model) {
  for (const std::string& path : model.paths) model.used = std::max(model.used, last_used(path));
}

// Each model once: that of the current commit, or of the newest that has it.
void add_repo(const HubCache& cache, const std::string& repo, std::vector<DownloadedModel>& models) {
  std::set<std::string> known;
  for (const std::string& commit : cache.commits(repo)) {
    for (const RepoModel& m : models_in(cache.files(repo, commit))) {
      if (!known.insert(m.path()).second) continue;
      DownloadedModel model;
      model.repo = repo;
      model.quant = m.quant;
      model.n_bytes = m.n_bytes();
      model.complete = m.complete();
      for (const RepoFile& f : m.files) model.paths.push_back(cache.snapshot_path(repo, commit, f.path));
      model.name = m.quant.empty() ? repo : repo + ":" + m.quant;
      set_used(model);
      models.push_back(std::move(model));
    }
  }
}

void add_url_files(const std::string& folder, std::vector<DownloadedModel>& models) {
  std::vector<RepoFile> files;
  for (std::string& name : files_below(folder)) {
    const fs::path path(std::move(name));
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) continue;
    files.push_back({path.lexically_relative(folder).string(), fs::file_size(path, ignored), ""});
  }
  for (const RepoModel& m : models_in(files)) {
    DownloadedModel model;
    model.name = m.path();
    model.n_bytes = m.n_bytes();
    model.complete = m.complete();
    for (const RepoFile& f : m.files) model.paths.push_back(folder + "/" + f.path);
    set_used(model);
    models.push_back(std::move(model));
  }
}

void add_partial(const HubCache& cache, const std::string& repo, std::vector<PartialDownload>& partial) {
  for (const std::string& blob : files_below(cache.repo_folder(repo) + "/blobs")) {
    std::error_code gone;
    if (!blob.ends_with(".incomplete")) continue;
    const uint64_t n_bytes = fs::file_size(blob, gone);
    if (!gone) partial.push_back({repo, blob, n_bytes});
  }
}

void remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) throw_error(ErrorCode::io, "{}: cannot remove: {}", path, error.message());
}

// Removes folders that became empty, up to `root`.
void remove_empty_folders(fs::path folder, const fs::path& root) {
  std::error_code not_empty;
  while (folder != root && folder.has_relative_path() && fs::remove(folder, not_empty) && !not_empty) {
    folder = folder.parent_path();
  }
}

// The blobs that the links of all snapshots lead to.
std::set<std::string> used_blobs(const HubCache& cache, const std::string& repo) {
  std::set<std::string> used;
  for (const std::string& commit : cache.commits(repo)) {
    for (const RepoFile& file : cache.files(repo, commit)) used.insert(file.object_id);
  }
  return used;
}

// Where a link leads; "" for a file.
std::string blob_of(const HubCache& cache, const std::string& repo, const std::string& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? "" : cache.blob_path(repo, target.filename());
}

uint64_t remove_hub_model(const HubCache& cache, const DownloadedModel& model) {
  // The same paths in every snapshot: older versions of the model go too.
  std::set<std::string> paths;
  for (const std::string& commit : cache.commits(model.repo)) {
    for (const RepoModel& m : models_in(cache.files(model.repo, commit))) {
      if (m.quant != model.quant) continue;
      for (const RepoFile& f : m.files) paths.insert(cache.snapshot_path(model.repo, commit, f.path));
    }
  }
  std::set<std::string> blobs;
  uint64_t n_freed = 0;
  for (const std::string& path : paths) {
    std::error_code ignored;
    const std::string blob = blob_of(cache, model.repo, path);
    if (blob.empty()) {
      n_freed += fs::file_size(path, ignored);
    } else {
      blobs.insert(blob);
    }
    remove_file(path);
    remove_empty_folders(fs::path(path).parent_path(), cache.repo_folder(model.repo));
  }
  const std::set<std::string> used = used_blobs(cache, model.repo);
  for (const std::string& blob : blobs) {
    std::error_code ignored;
    const uint64_t n_bytes = fs::file_size(blob, ignored);
    if (used.count(fs::path(blob).filename()) != 0) continue;
    remove_file(blob);
    n_freed += ignored ? 0 : n_bytes;
  }
  return n_freed;
}

}  // namespace

Downloads list_downloads(const HubSettings& settings) {
  const HubCache cache(settings.cache_folder);
  Downloads downloads;
  for (const std::string& repo : cache.repos()) {
    add_repo(cache, repo, downloads.models);
    add_partial(cache, repo, downloads.partial);
  }
  add_url_files(settings.url_folder, downloads.models);
  std::stable_sort(downloads.models.begin(), downloads.models.end(),
                   [](const auto& a, const auto& b) { return upper(a.name) < upper(b.name); });
  return downloads;
}

std::vector<DownloadedModel> matching(const Downloads& downloads, const std::string& text) {
  const std::optional<ModelName> name = parse_model_name(text);
  std::vector<DownloadedModel> found;
  for (const DownloadedModel& m : downloads.models) {
    const bool by_name = name && upper(m.repo) == upper(name->repo) &&
                         (name->quant.empty() || upper(m.quant) == upper(name->quant));
    if (by_name || m.name == text) found.push_back(m);
  }
  return found;
}

uint64_t remove_model(const HubSettings& settings, const DownloadedModel& model) {
  if (!model.repo.empty()) return remove_hub_model(HubCache(settings.cache_folder), model);
  for (const std::string& path : model.paths) {
    remove_file(path);
    remove_empty_folders(fs::path(path).parent_path(), settings.url_folder);
  }
  return model.n_bytes;
}

uint64_t remove_rest(const HubSettings& settings, const std::string& repo) {
  const HubCache cache(settings.cache_folder);
  // Other programs keep other files of the same repository.
  if (!used_blobs(cache, repo).empty()) return 0;
  uint64_t n_freed = 0;
  std::vector<PartialDownload> partial;
  add_partial(cache, repo, partial);
  for (const PartialDownload& p : partial) n_freed += p.n_bytes;
  std::error_code error;
  fs::remove_all(cache.repo_folder(repo), error);
  if (error) throw_error(ErrorCode::io, "{}: cannot remove: {}", cache.repo_folder(repo), error.message());
  fs::remove_all(fs::path(cache.lock_path(repo, "x")).parent_path(), error);
  return n_freed;
}

}  // namespace tandem::tools
