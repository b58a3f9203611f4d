// A model on the hub of which only the headers were downloaded: enough to inspect or plan it.
#pragma once

#include <cstdint>
#include <string>

#include "tools/hub/pull.h"

namespace tandem::tools {

// Sparse files of the model's names and sizes in a temporary folder, with zeros for weights. The destructor removes them.
class HeaderModel {
 public:
  // Requests as much of the start of every part as metadata and tensor table need. Throws Error(io | interrupted).
  HeaderModel(HttpClient& http, const HubSettings& settings, const FoundModel& found);
  ~HeaderModel();
  HeaderModel(const HeaderModel&) = delete;
  HeaderModel& operator=(const HeaderModel&) = delete;

  const std::string& path() const { return path_; }  // of the first part
  uint64_t n_read_bytes() const { return n_read_; }

 private:
  void fetch(HttpClient& http, const HubSettings& settings, const FoundModel& found, const RepoFile& file);

  std::string folder_, path_;
  uint64_t n_read_ = 0;
};

}  // namespace tandem::tools
