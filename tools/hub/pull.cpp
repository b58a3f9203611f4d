#include "tools/hub/pull.h"

#include <sys/stat.h>

#include <filesystem>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "plan/footprint.h"
#include "tools/hub/digest.h"
#include "tools/hub/download.h"
#include "tools/hub/url.h"

namespace tandem::tools {
namespace fs = std::filesystem;
namespace {

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

std::string file_name(const std::string& path) {
  return printable(fs::path(path).filename().string(), 300);
}

// All complete models that were downloaded, of the current commit first.
struct CachedModels {
  std::vector<std::string> commits;
  std::vector<std::vector<RepoModel>> models;  // of each commit
};

CachedModels cached_models(const HubCache& cache, const std::string& repo) {
  CachedModels cached;
  for (const std::string& commit : cache.commits(repo)) {
    std::vector<RepoModel> models = models_in(cache.files(repo, commit));
    std::erase_if(models, [](const RepoModel& m) { return !m.complete(); });
    if (models.empty()) continue;
    cached.commits.push_back(commit);
    cached.models.push_back(std::move(models));
  }
  return cached;
}

// The model among those that were downloaded; nullopt if it is not one of them.
std::optional<FoundModel> find_cached(const CachedModels& cached, const ModelName& name,
                                      const std::string& file) {
  for (size_t i = 0; i < cached.commits.size(); ++i) {
    try {
      const Choice choice = choose_model(cached.models[i], name.repo, name.quant, file);
      return FoundModel{name.repo, cached.commits[i], *choice.model, true};
    } catch (const Error&) {}  // an older commit may have it
  }
  return std::nullopt;
}

[[noreturn]] void throw_not_downloaded(const CachedModels& cached, const HubSettings& settings,
                                       const ModelName& name, const std::string& file) {
  std::string known;
  for (const auto& models : cached.models) {
    for (const RepoModel& m : models) {
      known += (known.empty() ? "" : ", ") + printable(m.quant.empty() ? m.path() : m.quant, 200);
    }
  }
  throw_error(ErrorCode::io, "{}{}{}: not downloaded, and {} forbids to ask the hub{}{}", name.text(),
              file.empty() ? "" : "/", printable(file, 300), settings.offline_why,
              known.empty() ? "" : "; downloaded is ", known);
}

FoundModel ask_hub(HttpClient& http, const HubSettings& settings, const ModelName& name,
                   const std::string& file) {
  HubApi api(http, settings);
  FoundModel found;
  found.repo = name.repo;
  found.commit = api.commit_of(name.repo, "main");
  const std::vector<RepoModel> models = models_in(api.files_of(name.repo, found.commit));
  const Choice choice = choose_model(models, name.repo, name.quant, file);
  if (!choice.why.empty()) log_info("{}: {}", name.repo, choice.why);
  found.model = *choice.model;
  return found;
}

// The files of a model that are still to be downloaded, and how much of them is there already.
struct Missing {
  std::vector<const RepoFile*> files;
  uint64_t n_before = 0;
};

Missing missing_files(const HubCache& cache, const FoundModel& found) {
  Missing missing;
  for (const RepoFile& file : found.model.files) {
    if (cache.has(found.repo, found.commit, file)) {
      missing.n_before += file.n_bytes;
      continue;
    }
    struct stat blob;
    const std::string path = cache.blob_path(found.repo, file.object_id);
    if (stat(path.c_str(), &blob) == 0 && static_cast<uint64_t>(blob.st_size) == file.n_bytes) {
      cache.link(found.repo, found.commit, file);  // unchanged since another commit
      missing.n_before += file.n_bytes;
      continue;
    }
    missing.n_before += std::min(n_incomplete_bytes(path), file.n_bytes);
    missing.files.push_back(&file);
  }
  return missing;
}

void report_start(const std::string& name, const FoundModel& found, const Missing& missing) {
  const size_t n_files = found.model.files.size();
  const std::string size = size_text(found.model.n_bytes());
  const std::string parts = n_files == 1 ? "" : format(" in {} files", n_files);
  if (missing.n_before > 0) {
    log_info("downloading {}: {}{}, {} of it already here", name, size, parts, size_text(missing.n_before));
  } else {
    log_info("downloading {}: {}{}", name, size, parts);
  }
}

void download_files(HttpClient& http, const HubSettings& settings, const HubCache& cache,
                    const FoundModel& found, const Missing& missing, TransferProgress& progress) {
  const HubApi api(http, settings);
  for (const RepoFile* file : missing.files) {
    Download request;
    request.url = api.file_url(found.repo, found.commit, file->path);
    request.token = settings.token;
    request.name = file_name(file->path);
    request.target = cache.blob_path(found.repo, file->object_id);
    request.n_bytes = file->n_bytes;
    request.object_id = file->object_id;
    request.page = settings.endpoint + "/" + found.repo;
    make_folder(fs::path(request.target).parent_path());
    progress.begin_file(request.name, n_incomplete_bytes(request.target));
    const FileLock lock(cache.lock_path(found.repo, file->object_id), request.name);
    if (is_file(request.target)) {  // another program was faster
      progress.at(file->n_bytes);
    } else {
      download(http, request, settings.retries, progress);
    }
    cache.link(found.repo, found.commit, *file);
  }
}

// "name-00001-of-00003.gguf" as all its parts; anything else as itself.
std::vector<std::string> parts_of(const std::string& name) {
  const std::vector<RepoModel> models = models_in({{name, 0, ""}});
  if (models.empty() || models[0].n_parts == 1) return {name};
  std::vector<std::string> parts;
  const size_t at = name.size() - std::string_view("00001-of-00003.gguf").size();
  for (size_t i = 1; i <= models[0].n_parts; ++i) {
    std::string part = name;
    parts.push_back(part.replace(at, 5, format("{:05}", i)));
  }
  return parts;
}

void report_interrupt(TransferProgress& progress) {
  progress.clear();
  log_info("interrupted: {} are kept, and the same command continues", size_text(progress.n_done()));
}

// `url` with another file name.
std::string sibling_url(const std::string& url, const std::string& path) {
  const size_t path_end = std::min(url.find_first_of("?#"), url.size());
  const size_t name_start = url.rfind('/', path_end) + 1;
  return url.substr(0, name_start) + encode_path(fs::path(path).filename().string()) + url.substr(path_end);
}

void pull_url_file(HttpClient& http, const HubSettings& settings, const std::string& url,
                   const std::string& path) {
  const bool own = parse_url(url)->origin() == parse_url(settings.endpoint)->origin();
  Download request;
  request.url = url;
  request.name = file_name(path);
  request.token = own ? settings.token : "";
  request.target = path;
  make_folder(fs::path(path).parent_path());
  const FileLock lock(settings.url_folder + "/.locks/" + sha256_hex(path) + ".lock", request.name);
  if (is_file(path)) return;
  log_info("downloading {}", request.name);
  TransferProgress progress(0, n_incomplete_bytes(path));
  progress.begin_file(request.name, n_incomplete_bytes(path));
  try {
    download(http, request, settings.retries, progress);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::interrupted) report_interrupt(progress);
    progress.clear();
    throw;
  }
  progress.clear();
  log_info("downloaded {}: {} in {:.0f} s", request.name, size_text(progress.n_done()), progress.seconds());
}

}  // namespace

FoundModel find_model(HttpClient& http, const HubSettings& settings, const ModelName& name,
                      const std::string& file) {
  const HubCache cache(settings.cache_folder);
  const CachedModels cached = cached_models(cache, name.repo);
  const std::optional<FoundModel> downloaded = find_cached(cached, name, file);
  if (settings.offline) {
    if (downloaded) return *downloaded;
    throw_not_downloaded(cached, settings, name, file);
  }
  if (!downloaded) {
    try {
      return ask_hub(http, settings, name, file);
    } catch (const UnreachableError& e) {
      throw_error(ErrorCode::io, "{}: not downloaded, and the hub cannot be reached: {}", name.text(),
                  e.message());
    }
  }
  HubSettings impatient = settings;  // there is something to fall back to
  impatient.retries.max_attempts = 1;
  try {
    return ask_hub(http, impatient, name, file);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::io) throw;
    log_warning("{}; using {} as it was downloaded before", e.message(), downloaded->name());
    return *downloaded;
  }
}

bool is_downloaded(const HubSettings& settings, const FoundModel& found) {
  return found.from_cache || missing_files(HubCache(settings.cache_folder), found).files.empty();
}

std::string pull_model(HttpClient& http, const HubSettings& settings, const FoundModel& found) {
  const HubCache cache(settings.cache_folder);
  const std::string path = cache.snapshot_path(found.repo, found.commit, found.model.path());
  if (found.from_cache) return path;
  const Missing missing = missing_files(cache, found);
  if (!missing.files.empty()) {
    report_start(found.name(), found, missing);
    TransferProgress progress(found.model.n_bytes(), missing.n_before);
    try {
      download_files(http, settings, cache, found, missing, progress);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::interrupted) report_interrupt(progress);
      progress.clear();
      throw;
    }
    progress.clear();
    log_info("downloaded {} in {:.0f} s", found.name(), progress.seconds());
  }
  cache.set_main(found.repo, found.commit);
  return path;
}

std::string url_file_path(const HubSettings& settings, const std::string& url) {
  const std::optional<Url> parts = parse_url(url);
  if (!parts) {
    throw_error(ErrorCode::usage, "'{}' is not a URL, needed https://HOST/PATH", printable(url, 300));
  }
  const std::string path = decode_path(parts->path).substr(1);
  if (!is_safe_path(path)) {
    throw_error(ErrorCode::usage, "{}: the URL does not name a file", printable(url, 300));
  }
  const std::string port = parts->port == "443" || parts->port == "80" ? "" : "_" + parts->port;
  return settings.url_folder + "/" + parts->host + port + "/" + path;
}

std::string pull_url(HttpClient& http, const HubSettings& settings, const std::string& url) {
  const std::string first = url_file_path(settings, url);
  for (const std::string& path : parts_of(first)) {
    if (is_file(path)) continue;
    if (settings.offline) {
      throw_error(ErrorCode::io, "{}: not downloaded, and {} forbids to download it", printable(url, 300),
                  settings.offline_why);
    }
    require_secure(url);
    // The other parts have the same URL but for their names.
    pull_url_file(http, settings, path == first ? url : sibling_url(url, path), path);
  }
  return first;
}

std::optional<HubFileUrl> parse_hub_file_url(const HubSettings& settings, const std::string& text) {
  const std::optional<Url> url = parse_url(text), endpoint = parse_url(settings.endpoint);
  if (!url || !endpoint || url->origin() != endpoint->origin()) return std::nullopt;
  const std::string path = decode_path(url->path);
  for (const std::string_view middle : {"/resolve/main/", "/blob/main/"}) {
    const size_t at = path.find(middle);
    if (at == path.npos) continue;
    const std::optional<ModelName> name = parse_model_name(path.substr(1, at - 1));
    if (!name || !name->quant.empty()) return std::nullopt;
    return HubFileUrl{name->repo, path.substr(at + middle.size())};
  }
  return std::nullopt;
}

}  // namespace tandem::tools
