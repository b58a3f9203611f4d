// One file from a URL to the disk, so that a failure at any moment costs only what was not written yet.
//
// Writes to TARGET.incomplete, continues it with a range request the next time, checks size and hash, syncs, and renames.
// Requests that fail are repeated as the policy says; progress resets the count.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/progress.h"
#include "tools/hub/http.h"

namespace tandem::tools {

// Progress of all files of a model: a bar on a terminal, else a line now and then.
class TransferProgress {
 public:
  // n_before: bytes that an earlier run has downloaded.
  TransferProgress(uint64_t n_total, uint64_t n_before);
  void begin_file(const std::string& name, uint64_t n_before);  // n_before: of this file
  void at(uint64_t n_bytes_of_file);
  void set_total(uint64_t n_total);  // where only the server knows
  void clear() { progress_.clear(); }
  double seconds() const { return progress_.seconds(); }
  uint64_t n_done() const { return n_done_; }

 private:
  uint64_t n_total_, n_done_ = 0, n_other_files_ = 0;
  std::string name_;
  Progress progress_;
  double next_line_s_ = 10;
};

struct Download {
  std::string url, token;
  std::string name;                 // in messages
  std::string target;               // path
  std::optional<uint64_t> n_bytes;  // as listed; nullopt: what the server says
  std::string object_id;            // hash of the content; empty: unknown
  std::string page;                 // where people ask for access
};

// Bytes of TARGET.incomplete.
uint64_t n_incomplete_bytes(const std::string& target);

// The caller holds the lock of the file. Throws Error(io) that starts with the name, Error(interrupted).
void download(HttpClient& http, const Download& request, const RetryPolicy& policy,
              TransferProgress& progress);

}  // namespace tandem::tools
