#include "tools/hub/api.h"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "tools/hub/digest.h"
#include "tools/hub/url.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxPageBytes = size_t{32} << 20;
constexpr size_t kMaxFiles = 100000;
constexpr size_t kMaxPath = 1000;

// The target of rel="next" in a Link header; "" if there is none.
std::string next_link(const std::string& header) {
  const size_t rel = header.find("rel=\"next\"");
  const size_t end = header.rfind('>', rel);
  if (rel == header.npos || end == header.npos) return "";
  const size_t start = header.rfind('<', end);
  return start == header.npos ? "" : header.substr(start + 1, end - start - 1);
}

const Json* member(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string text_of(const Json& object, const char* name) {
  const Json* value = member(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// A file of the listing; throws for what no well-meaning hub sends.
RepoFile read_file_entry(const Json& entry, const std::string& repo) {
  RepoFile file;
  file.path = text_of(entry, "path");
  if (!is_safe_path(file.path)) {
    throw_error(ErrorCode::io, "{}: the hub lists a file named '{}', which is not a path inside a repository",
                repo, printable(file.path, 300));
  }
  const Json* lfs = member(entry, "lfs");
  const bool large = lfs != nullptr && lfs->is_object();
  const Json* size = member(large ? *lfs : entry, "size");
  if (size == nullptr) size = member(entry, "size");
  file.object_id = text_of(large ? *lfs : entry, "oid");
  if (file.object_id.starts_with("sha256:")) file.object_id.erase(0, 7);
  if (size == nullptr || !size->is_number_unsigned() || !is_object_id(file.object_id)) {
    throw_error(ErrorCode::io, "{}: the hub lists {} without its size and hash", repo,
                printable(file.path, 300));
  }
  file.n_bytes = size->get<uint64_t>();
  if (file.n_bytes > INT64_MAX) {
    throw_error(ErrorCode::io, "{}: the hub lists {} with {} bytes", repo, printable(file.path, 300),
                file.n_bytes);
  }
  return file;
}

}  // namespace

struct HubApi::Page {
  Json json;
  std::string next;
};

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPath) return false;
  for (const char c : path) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f || c == '\\') return false;
  }
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > 255) return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

void check_status(const HttpResponse& response, const std::string& name, const std::string& page,
                  bool has_token) {
  const int status = response.status;
  if (status >= 200 && status < 300) return;
  const std::string host = parse_url(response.url)->host;
  if (status == 401) {
    throw_error(ErrorCode::io, "{}: {}", name,
                has_token ? "the hub does not accept the access token"
                          : "no such model, or one that is private: a private one needs an access token "
                            "(-hft, or HF_TOKEN)");
  }
  if (status == 403) {
    throw_error(ErrorCode::io, "{}: access is denied{}{}", name,
                page.empty() ? "" : "; accept the conditions of the repository at ", page);
  }
  if (status == 404) throw_error(ErrorCode::io, "{}: not found at {}", name, host);
  const std::string message = format("{}: {} answers with status {}", name, host, status);
  if (status == 408 || status == 429 || status >= 500) {
    throw TransientError(status == 429 ? message + " (too many requests)" : message,
                         response.retry_after_s());
  }
  throw Error(ErrorCode::io, message);
}

HubApi::Page HubApi::get(const std::string& repo, const std::string& url) {
  Retries retries(settings_.retries);
  while (true) {
    try {
      std::string body;
      const HttpResponse response = http_.get(
          {.url = url, .token = settings_.token},
          {nullptr, [&](std::span<const std::byte> bytes) {
             body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
             if (body.size() > kMaxPageBytes) {
               throw_error(ErrorCode::io, "{}: the hub's answer has more than {} bytes", repo, kMaxPageBytes);
             }
             return true;
           }});
      check_status(response, repo, settings_.endpoint + "/" + repo, !settings_.token.empty());
      Page page{Json::parse(body, nullptr, false), next_link(response.header("link"))};
      if (page.json.is_discarded()) {
        throw_error(ErrorCode::io, "{}: the hub's answer is not JSON; it starts with '{}' ({})", repo,
                    printable(body, 40), printable(url, 300));
      }
      return page;
    } catch (const TransientError& failure) {
      retries.wait_or_throw(failure);
    }
  }
}

std::string HubApi::commit_of(const std::string& repo, const std::string& revision) {
  const std::string url = settings_.endpoint + "/api/models/" + repo + "/revision/" + encode_path(revision);
  const Page page = get(repo, url);
  const std::string commit = page.json.is_object() ? text_of(page.json, "sha") : "";
  if (!is_object_id(commit)) {
    throw_error(ErrorCode::io, "{}: the hub's answer names no commit ({})", repo, printable(url, 300));
  }
  return commit;
}

std::vector<RepoFile> HubApi::files_of(const std::string& repo, const std::string& commit) {
  std::vector<RepoFile> files;
  std::set<std::string> seen;
  std::string url = settings_.endpoint + "/api/models/" + repo + "/tree/" + commit + "?recursive=true";
  size_t n_entries = 0;
  while (!url.empty()) {
    // A page that comes again, or one of nothing new, would never end.
    if (!seen.insert(url).second || n_entries > kMaxFiles || seen.size() > kMaxFiles / 100) {
      throw_error(ErrorCode::io, "{}: the hub's list of files does not end ({} files so far)", repo,
                  n_entries);
    }
    const Page page = get(repo, url);
    if (!page.json.is_array()) {
      throw_error(ErrorCode::io, "{}: the hub's answer is not a list of files ({})", repo,
                  printable(url, 300));
    }
    for (const Json& entry : page.json) {
      ++n_entries;
      if (entry.is_object() && text_of(entry, "type") == "file") {
        files.push_back(read_file_entry(entry, repo));
      }
    }
    const std::optional<Url> next = parse_url(page.next);
    if (!page.next.empty() && (!next || next->origin() != parse_url(settings_.endpoint)->origin())) {
      throw_error(ErrorCode::io, "{}: the hub's list of files goes on at another host ({})", repo,
                  printable(page.next, 300));
    }
    url = page.next;
  }
  return files;
}

std::string HubApi::file_url(const std::string& repo, const std::string& commit,
                             const std::string& path) const {
  return settings_.endpoint + "/" + repo + "/resolve/" + commit + "/" + encode_path(path);
}

}  // namespace tandem::tools
