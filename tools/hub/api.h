// The hub's HTTP interface: which commit a repository is at, and which files it has.
//
// Everything that the hub sends is checked here: what comes out is safe to use as paths and in messages. Requests are
// repeated as HubSettings::retries says. Not thread-safe. Throws Error(io) that starts with the repository's name,
// TransientError for failures that may pass, Error(interrupted).
#pragma once

#include <string>
#include <vector>

#include "tools/hub/choice.h"
#include "tools/hub/http.h"
#include "tools/hub/settings.h"

namespace tandem::tools {

class HubApi {
 public:
  HubApi(HttpClient& http, const HubSettings& settings) : http_(http), settings_(settings) {}

  // The commit (a hash in hexadecimal) of a branch or tag.
  std::string commit_of(const std::string& repo, const std::string& revision);
  // All files of a commit.
  std::vector<RepoFile> files_of(const std::string& repo, const std::string& commit);
  // Where a file's content is.
  std::string file_url(const std::string& repo, const std::string& commit, const std::string& path) const;

 private:
  struct Page;
  Page get(const std::string& repo, const std::string& url);

  HttpClient& http_;
  const HubSettings& settings_;
};

// Throws what a status other than 2xx means, TransientError for those of busy servers. `name`: what was asked for;
// `page`: where people can ask for access, empty if nowhere.
void check_status(const HttpResponse& response, const std::string& name, const std::string& page,
                  bool has_token);

// Whether a path from the hub stays inside the folder it is put in: relative, without "..", empty parts or special
// characters.
bool is_safe_path(std::string_view path);

}  // namespace tandem::tools
