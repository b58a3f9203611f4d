// The models that were downloaded: what `tandem list` shows and `tandem rm` removes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/hub/cache.h"
#include "tools/hub/settings.h"

namespace tandem::tools {

// A model in the hub's cache, or a file from a URL.
struct DownloadedModel {
  std::string name;                // "USER/REPO:QUANT"; the URL's host and path
  std::string repo, quant;         // of a model from the hub
  std::vector<std::string> paths;  // of the parts: links in a snapshot, or files
  uint64_t n_bytes = 0;
  int64_t used = 0;      // seconds since 1970: when it was last read, as far as the file system knows
  bool complete = true;  // all parts are there
};

// Contents that are not complete: of an interrupted download, or one under way. Only their repository is known.
struct PartialDownload {
  std::string repo, path;
  uint64_t n_bytes = 0;
};

struct Downloads {
  std::vector<DownloadedModel> models;  // by name
  std::vector<PartialDownload> partial;
};

Downloads list_downloads(const HubSettings& settings);

// The models that a name means: all of a repository, or one of its quantizations (case does not matter).
std::vector<DownloadedModel> matching(const Downloads& downloads, const std::string& name);

// Removes the links of a model from all snapshots, and the blobs that no other link uses; returns the bytes that this
// freed. Throws Error(io).
uint64_t remove_model(const HubSettings& settings, const DownloadedModel& model);
// Removes what is left of a repository without models: refs, empty snapshots, partial downloads.
uint64_t remove_rest(const HubSettings& settings, const std::string& repo);

}  // namespace tandem::tools
