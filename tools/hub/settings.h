// Where the hub is, who asks, and where downloads are kept. The environment is the one that the hub's own client reads,
// so that all programs share their downloads: HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE.
#pragma once

#include <string>

#include "tools/hub/http.h"

namespace tandem::tools {

struct HubSettings {
  std::string endpoint;      // "https://huggingface.co", without a slash at the end
  std::string token;         // empty: none
  std::string cache_folder;  // of the hub's client
  std::string url_folder;    // for files from anywhere else
  bool offline = false;
  std::string offline_why = "--offline";
  HttpTimeouts timeouts;
  RetryPolicy retries;
};

// Reads the environment. Throws Error(usage) for a token that is none, Error(io) if there is no home folder.
HubSettings hub_settings();
// Throws Error(usage) that starts with `source` if it cannot be a token: it must not break the request's header.
std::string checked_token(const std::string& source, const std::string& text);

}  // namespace tandem::tools
