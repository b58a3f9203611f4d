#include "tools/batch/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/terminal.h"
#include "tools/batch/line_reader.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kLineStart = "{\"index\":";

uint64_t hash_of(const Json& id) {
  if (id.is_null()) return 0;
  const std::string text = id.dump(-1, ' ', false, Json::error_handler_t::replace);
  const uint64_t hash = std::hash<std::string>{}(text);
  return hash == 0 ? 1 : hash;
}

bool is_ours(const Json& line) {
  if (!line.is_object() || !line.contains("index") || !line["index"].is_number_unsigned()) return false;
  if (line.contains("id") && line["id"].is_structured()) return false;
  const char* what = line.contains("error") ? "error" : "text";
  return line.contains(what) && line[what].is_string();
}

}  // namespace

AnswerFile::AnswerFile(const std::string& path)
    : path_(path), name_(path == "-" ? "stdout" : printable(path, 4096)) {
  try {
    open_file();
  } catch (...) {
    if (fd_ > STDERR_FILENO) close(fd_);
    throw;
  }
}

AnswerFile::~AnswerFile() {
  if (fd_ > STDERR_FILENO) close(fd_);
}

void AnswerFile::open_file() {
  if (path_ == "-") {
    fd_ = STDOUT_FILENO;
    return;
  }
  fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", name_, strerror(errno));
  struct stat info {};
  if (fstat(fd_, &info) != 0 || !S_ISREG(info.st_mode)) return;
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw_error(ErrorCode::io, "{}: another tandem batch is writing it", name_);
  }
  read_done();
}

void AnswerFile::read_done() {
  LineReader reader(fd_, name_);
  std::string line;
  uint64_t n_whole = 0;  // bytes of complete lines
  while (reader.next(line) == LineReader::Result::line) {
    if (!reader.ended()) {
      const size_t n = std::min(line.size(), kLineStart.size());
      if (reader.too_long() || line.compare(0, n, kLineStart, 0, n) != 0) add_done(line, reader.n_lines());
      if (ftruncate(fd_, static_cast<off_t>(n_whole)) != 0) {
        throw_error(ErrorCode::io, "{}: cannot remove the incomplete last line: {}", name_, strerror(errno));
      }
      return;
    }
    add_done(line, reader.n_lines());
    n_whole = reader.n_bytes();
  }
}

void AnswerFile::add_done(const std::string& text, int64_t number) {
  const Json line = parse_json_or_null<Json>(text);
  if (!is_ours(line)) {
    throw_error(ErrorCode::bad_file,
                "{}: line {} is not an answer of tandem batch; an existing output file must hold only such "
                "answers",
                name_, number);
  }
  const bool error = line.contains("error");
  n_errors_ += error;
  done_[line["index"].get<int64_t>()] = {line.contains("id") ? hash_of(line["id"]) : 0, error};
}

bool AnswerFile::is_of(int64_t index, const Json& id) const {
  const Done& done = done_.at(index);
  return done.id == hash_of(id) || (done.error && done.id == 0);
}

// Writes the line in one call, so that a kill can cut only the last line.
void AnswerFile::write(const Json& answer) {
  std::string line = answer.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  if (fd_ == STDOUT_FILENO && isatty(fd_) == 1) line = harmless(line);
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE && fd_ == STDOUT_FILENO) throw ClosedPipe();
    if (n < 0) throw_error(ErrorCode::io, "{}: write failed: {}", name_, strerror(errno));
    rest.remove_prefix(n);
  }
}

}  // namespace tandem::tools
