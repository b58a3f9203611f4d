// A model from the hub, or from a URL, to a path on this machine.
#pragma once

#include <string>
#include <vector>

#include "tools/hub/api.h"
#include "tools/hub/cache.h"
#include "tools/hub/model_name.h"
#include "tools/hub/settings.h"

namespace tandem::tools {

// A model of a repository at a commit: what was asked for, found out.
struct FoundModel {
  std::string repo, commit;
  RepoModel model;
  bool from_cache = false;  // the hub was not asked or did not answer: the snapshot is complete

  // "USER/REPO:Q4_K_M"
  std::string name() const { return model.quant.empty() ? repo : repo + ":" + model.quant; }
};

// Finds out which files are meant: asks the hub, unless settings.offline. If the hub cannot be reached, takes what was
// downloaded before and says so. `file` names a file of the repository instead of the quantization. Throws Error(usage)
// for a quantization or file that there is not, else Error(io).
FoundModel find_model(HttpClient& http, const HubSettings& settings, const ModelName& name,
                      const std::string& file);

// Whether pull_model has nothing to download.
bool is_downloaded(const HubSettings& settings, const FoundModel& found);
// Downloads what is missing; returns the path of the (first) file. Ctrl-C keeps what there is, says so and throws
// Error(interrupted).
std::string pull_model(HttpClient& http, const HubSettings& settings, const FoundModel& found);

// Downloads a file from anywhere, with the other parts of a split model.
std::string pull_url(HttpClient& http, const HubSettings& settings, const std::string& url);
// Where such a file is kept.
std::string url_file_path(const HubSettings& settings, const std::string& url);

// "https://huggingface.co/USER/REPO/resolve/main/FILE" and the like, of settings.endpoint, as its parts.
struct HubFileUrl {
  std::string repo, file;
};
std::optional<HubFileUrl> parse_hub_file_url(const HubSettings& settings, const std::string& url);

}  // namespace tandem::tools
