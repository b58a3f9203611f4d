#include "tools/hub/download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/text_input.h"
#include "plan/footprint.h"
#include "tools/hub/api.h"
#include "tools/hub/cache.h"
#include "tools/hub/digest.h"

namespace tandem::tools {
namespace {

// So much more than before is progress: a server that sends a byte per attempt does not keep us forever.
constexpr uint64_t kProgressBytes = uint64_t{1} << 20;

std::string incomplete_path(const std::string& target) {
  return target + ".incomplete";
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "bytes 100-199/200"
struct ContentRange {
  uint64_t first = 0;
  std::optional<uint64_t> total;
};

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (!text.starts_with("bytes ")) return std::nullopt;
  const size_t dash = text.find('-'), slash = text.find('/');
  if (dash == text.npos || slash == text.npos || dash > slash) return std::nullopt;
  const std::optional<uint64_t> first = number(text.substr(6, dash - 6));
  if (!first) return std::nullopt;
  return ContentRange{*first, number(text.substr(slash + 1))};
}

// The file that is being downloaded.
class PartialFile {
 public:
  PartialFile(const Download& request) : request_(request), path_(incomplete_path(request.target)) {
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot create: {}", path_, strerror(errno));
    struct stat status;
    if (fstat(fd_, &status) == 0) n_bytes_ = static_cast<uint64_t>(status.st_size);
    if (request.n_bytes && n_bytes_ > *request.n_bytes) clear();
  }
  ~PartialFile() {
    if (fd_ >= 0) close(fd_);
  }
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  uint64_t n_bytes() const { return n_bytes_; }

  // The etag of the version that the content is of, for files whose hash is not known.
  std::string etag() const {
    const std::string text = read_optional_file(path_ + ".etag", 4096);
    return text.substr(0, text.find('\n'));
  }
  void set_etag(const std::string& etag) { write_whole_file(path_ + ".etag", etag); }

  void clear() {
    if (ftruncate(fd_, 0) != 0) throw_error(ErrorCode::io, "{}: cannot empty: {}", path_, strerror(errno));
    n_bytes_ = 0;
  }

  void append(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(n_bytes_));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail("write");
      n_bytes_ += static_cast<uint64_t>(n);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }

  // Throws if the disk cannot hold the rest.
  void require_space(uint64_t n_rest) const {
    struct statvfs disk;
    if (fstatvfs(fd_, &disk) != 0) return;
    const uint64_t n_free = static_cast<uint64_t>(disk.f_bavail) * disk.f_frsize;
    if (n_free >= n_rest) return;
    throw_error(ErrorCode::io, "{}: the disk of {} has {} free, needed {}", request_.name, path_,
                size_text(n_free), size_text(n_rest));
  }

  // Adds everything so far to a hash.
  void hash(Digest& digest) const {
    std::vector<std::byte> buffer(size_t{1} << 20);
    for (uint64_t at = 0; at < n_bytes_;) {
      if (interrupted()) throw Error(ErrorCode::interrupted, "");
      const ssize_t n = pread(fd_, buffer.data(), buffer.size(), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw_error(ErrorCode::io, "{}: cannot read: {}", path_, strerror(errno));
      digest.add(std::span(buffer).first(static_cast<size_t>(n)));
      at += static_cast<uint64_t>(n);
    }
  }

  void publish() {
    if (fsync(fd_) != 0) fail("sync");
    if (rename(path_.c_str(), request_.target.c_str()) != 0) fail("rename to its final name");
    unlink((path_ + ".etag").c_str());
  }

 private:
  [[noreturn]] void fail(const char* doing) const {
    throw_error(ErrorCode::io, "{}: cannot {} {}: {}; {} are kept, and the same command continues",
                request_.name, doing, path_, strerror(errno), size_text(n_bytes_));
  }

  const Download& request_;
  std::string path_;
  int fd_ = -1;
  uint64_t n_bytes_ = 0;
};

// One download: requests until the file is complete.
class Transfer {
 public:
  Transfer(HttpClient& http, const Download& request, TransferProgress& progress)
      : http_(http), request_(request), progress_(progress), file_(request), n_total_(request.n_bytes) {
    restart_digest();
    if (!request_.object_id.empty()) file_.hash(*digest_);
    resumed_ = file_.n_bytes() > 0;
    if (n_total_) file_.require_space(*n_total_ - file_.n_bytes());
    progress_.at(file_.n_bytes());
  }

  void run(const RetryPolicy& policy) {
    Retries retries(policy, Retries::Unreachable::is_waited_for);
    while (!complete()) {
      const uint64_t before = file_.n_bytes();
      try {
        request();
      } catch (const TransientError& failure) {
        if (file_.n_bytes() >= before + kProgressBytes) retries.reset();
        progress_.clear();
        retries.wait_or_throw(failure);
      }
    }
  }

  // Whether the content is the listed one. A wrong one is discarded.
  bool verify() {
    if (request_.object_id.empty()) return true;
    const std::string found = digest_->hex();
    if (found == request_.object_id) return true;
    file_.clear();
    const bool again = resumed_;
    if (!again) {
      throw_error(ErrorCode::io,
                  "{}: the download is damaged and was discarded: its {} is {}, the hub lists {}",
                  request_.name, digest_->name(), found, request_.object_id);
    }
    log_warning("{}: the part that was kept is damaged; downloading it again", request_.name);
    restart_digest();
    resumed_ = false;
    return false;
  }

  void publish() { file_.publish(); }

 private:
  bool complete() const { return n_total_ && file_.n_bytes() == *n_total_ && (answered_ || *n_total_ > 0); }

  void restart_digest() {
    digest_.emplace(request_.object_id.empty() ? std::string(64, '0') : request_.object_id,
                    n_total_.value_or(0));
  }

  void restart() {
    file_.clear();
    restart_digest();
    resumed_ = false;
  }

  void request() {
    HttpRequest r{.url = request_.url, .token = request_.token};
    if (file_.n_bytes() > 0) {
      r.range = std::to_string(file_.n_bytes()) + "-";
      if (request_.object_id.empty()) r.if_range = file_.etag();
      // Nothing says that it is still the same file.
      if (request_.object_id.empty() && r.if_range.empty()) {
        r.range.clear();
      }
    }
    HttpSink sink;
    sink.begin = [this](const HttpResponse& response) { begin(response); };
    sink.data = [this](std::span<const std::byte> bytes) {
      add(bytes);
      return true;
    };
    const HttpResponse response = http_.get(r, sink);
    if (response.status == 416) {  // the file is shorter than what we have of it
      restart();
      throw TransientError(format("{}: the server does not continue the download", request_.name));
    }
    check_status(response, request_.name, request_.page, !request_.token.empty());
    answered_ = true;
    if (!n_total_) n_total_ = file_.n_bytes();
    if (!complete()) {
      throw TransientError(
          format("{}: the connection ended after {} of {} bytes", request_.name, file_.n_bytes(), *n_total_));
    }
  }

  void begin(const HttpResponse& response) {
    std::optional<uint64_t> total;
    if (response.status == 206) {
      const std::optional<ContentRange> range = parse_content_range(response.header("content-range"));
      if (!range || range->first != file_.n_bytes()) {
        restart();
        throw TransientError(
            format("{}: the server sends another range than the one asked for", request_.name));
      }
      total = range->total;
    } else {
      if (file_.n_bytes() > 0) restart();  // the server sends everything again
      total = number(response.header("content-length"));
      if (request_.object_id.empty()) file_.set_etag(strong_etag(response));
    }
    if (!total) return;
    if (request_.n_bytes && *total != *request_.n_bytes) {
      throw_error(ErrorCode::io, "{}: the hub lists {} bytes and sends {}", request_.name, *request_.n_bytes,
                  *total);
    }
    if (!request_.n_bytes) {
      file_.require_space(*total - std::min(*total, file_.n_bytes()));
      progress_.set_total(*total);
    }
    n_total_ = total;
  }

  // "" for a weak one, which does not say that the bytes are the same.
  static std::string strong_etag(const HttpResponse& response) {
    const std::string& etag = response.header("etag");
    return etag.starts_with("\"") ? etag : "";
  }

  void add(std::span<const std::byte> bytes) {
    if (n_total_ && file_.n_bytes() + bytes.size() > *n_total_) {
      throw_error(ErrorCode::io, "{}: the server sends more than the {} bytes of the file", request_.name,
                  *n_total_);
    }
    file_.append(bytes);
    if (!request_.object_id.empty()) digest_->add(bytes);
    progress_.at(file_.n_bytes());
  }

  HttpClient& http_;
  const Download& request_;
  TransferProgress& progress_;
  PartialFile file_;
  std::optional<uint64_t> n_total_;
  std::optional<Digest> digest_;
  bool resumed_ = false;   // part of the content is from an earlier run
  bool answered_ = false;  // tells an empty file from one of which nothing came yet
};

}  // namespace

TransferProgress::TransferProgress(uint64_t n_total, uint64_t n_before)
    : n_total_(n_total),
      n_done_(n_before),
      progress_("bytes", static_cast<int64_t>(n_total), static_cast<int64_t>(n_before)) {}

void TransferProgress::begin_file(const std::string& name, uint64_t n_before) {
  name_ = name;
  n_other_files_ = n_done_ - std::min(n_done_, n_before);
}

void TransferProgress::at(uint64_t n_bytes_of_file) {
  n_done_ = n_other_files_ + n_bytes_of_file;
  if (progress_.animated()) {
    progress_.update(static_cast<int64_t>(n_done_),
                     format("{} of {}  {}", size_text(n_done_), size_text(n_total_), name_));
  } else if (progress_.seconds() >= next_line_s_) {
    next_line_s_ = progress_.seconds() + 10;
    progress_.item_done(format("{}: {} of {}", name_, size_text(n_done_), size_text(n_total_)));
  }
}

void TransferProgress::set_total(uint64_t n_total) {
  n_total_ = n_total;
  progress_.set_total(static_cast<int64_t>(n_total));
}

uint64_t n_incomplete_bytes(const std::string& target) {
  struct stat status;
  return stat(incomplete_path(target).c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_size) : 0;
}

void download(HttpClient& http, const Download& request, const RetryPolicy& policy,
              TransferProgress& progress) {
  Transfer transfer(http, request, progress);
  do {
    transfer.run(policy);
  } while (!transfer.verify());
  transfer.publish();
}

}  // namespace tandem::tools
