#include "tools/hub/header_model.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/error.h"
#include "tools/hub/gguf_header.h"

namespace tandem::tools {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kFirstRequest = uint64_t{1} << 20;
constexpr uint64_t kMaxHeader = uint64_t{1} << 30;

std::string make_temporary_folder() {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  if (error)
    throw_error(ErrorCode::io, "no folder for temporary files: {}: set TMPDIR to one", error.message());
  std::string name = (folder / "tandem-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw_error(ErrorCode::io, "{}: cannot create this folder: {}", name, strerror(errno));
  }
  return name;
}

// Bytes [start.size(), end) of a file, appended to `start`.
void request_more(HttpClient& http, HttpRequest request, uint64_t end, std::vector<std::byte>& start,
                  const std::string& name, const std::string& page) {
  request.range = std::to_string(start.size()) + "-" + std::to_string(end - 1);
  uint64_t n_skip = 0;
  HttpSink sink;
  sink.begin = [&](const HttpResponse& response) {
    n_skip = response.status == 206 ? 0 : start.size();  // a server without ranges sends everything
  };
  sink.data = [&](std::span<const std::byte> bytes) {
    const uint64_t n_skipped = std::min<uint64_t>(n_skip, bytes.size());
    n_skip -= n_skipped;
    bytes = bytes.subspan(n_skipped);
    bytes = bytes.first(std::min<uint64_t>(bytes.size(), end - start.size()));
    start.insert(start.end(), bytes.begin(), bytes.end());
    return start.size() < end;
  };
  check_status(http.get(request, sink), name, page, !request.token.empty());
  if (start.size() < end) {
    throw TransientError(format("{}: the connection ended after {} of {} bytes", name, start.size(), end));
  }
}

void write_sparse(const std::string& path, std::span<const std::byte> start, uint64_t n_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  bool written = fd >= 0;
  for (size_t done = 0; written && done < start.size();) {
    const ssize_t n = write(fd, start.data() + done, start.size() - done);
    written = n > 0;
    if (written) done += static_cast<size_t>(n);
  }
  written = written && ftruncate(fd, static_cast<off_t>(n_bytes)) == 0;
  const int why = errno;
  if (fd >= 0) close(fd);
  if (!written) throw_error(ErrorCode::io, "{}: cannot write: {}", path, strerror(why));
}

}  // namespace

HeaderModel::HeaderModel(HttpClient& http, const HubSettings& settings, const FoundModel& found)
    : folder_(make_temporary_folder()) {
  try {
    for (const RepoFile& file : found.model.files) fetch(http, settings, found, file);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    throw;
  }
  path_ = folder_ + "/" + fs::path(found.model.path()).filename().string();
}

HeaderModel::~HeaderModel() {
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

void HeaderModel::fetch(HttpClient& http, const HubSettings& settings, const FoundModel& found,
                        const RepoFile& file) {
  const std::string name = fs::path(file.path).filename();
  const HttpRequest request{.url = HubApi(http, settings).file_url(found.repo, found.commit, file.path),
                            .token = settings.token};
  std::vector<std::byte> start;
  Retries retries(settings.retries);
  while (start.size() < file.n_bytes && !gguf_header_end(start)) {
    if (start.size() >= kMaxHeader) {
      throw_error(ErrorCode::bad_file, "{}: the header does not end in the first {} bytes", name,
                  start.size());
    }
    const uint64_t end = std::min(file.n_bytes, std::max(kFirstRequest, 4 * uint64_t{start.size()}));
    try {
      request_more(http, request, end, start, name, settings.endpoint + "/" + found.repo);
    } catch (const TransientError& failure) {
      retries.wait_or_throw(failure);
    }
  }
  n_read_ += start.size();
  write_sparse(folder_ + "/" + name, start, file.n_bytes);
}

}  // namespace tandem::tools
