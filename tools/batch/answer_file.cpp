#include "tools/batch/answer_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/terminal.h"
#include "tools/batch/line_reader.h"
#include "tools/output.h"
#include "tools/statistics.h"

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

bool AnswerMark::is_of(const Json& of) const {
  return id == hash_of(of) || (error && id == 0);
}

std::optional<Answer> parse_answer(const std::string& text) {
  const Json line = parse_json_or_null<Json>(text);
  if (!is_ours(line)) return {};
  const uint64_t id = line.contains("id") ? hash_of(line["id"]) : 0;
  return Answer{line["index"].get<int64_t>(), {id, line.contains("error")}};
}

std::string answer_line(const Json& answer) {
  return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void throw_no_answer(const std::string& file_name, int64_t line) {
  throw_error(ErrorCode::bad_file,
              "{}: line {} is not an answer of tandem batch; an existing output file must hold only such "
              "answers",
              file_name, line);
}

AnswerFile::AnswerFile(const std::string& path, const Shard& shard)
    : path_(path), name_(path == "-" ? "stdout" : printable(path, 4096)), shard_(shard) {
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

void AnswerFile::log_done() const {
  if (done_.empty()) return;
  log_info("{}: {} already done{}", name_, counted(n_done(), "line"),
           n_errors_ > 0 ? format(", {} of them with an error", n_errors_).c_str() : "");
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

void AnswerFile::add_done(const std::string& line, int64_t number) {
  const std::optional<Answer> answer = parse_answer(line);
  if (!answer) throw_no_answer(name_, number);
  if (!shard_.has(answer->index)) {
    throw_error(ErrorCode::bad_file, "{}: has an answer to line {}, which is not in shard {}", name_,
                answer->index, shard_.text());
  }
  n_errors_ += answer->mark.error;
  done_[answer->index] = answer->mark;
}

bool AnswerFile::is_on_terminal() const {
  return fd_ == STDOUT_FILENO && isatty(fd_) == 1;
}
bool AnswerFile::is_piped() const {
  return fd_ == STDOUT_FILENO && is_pipe(fd_);
}

// Writes the line in one call, so that a kill can cut only the last line.
void AnswerFile::write(std::string line) {
  line += '\n';
  if (is_on_terminal()) line = harmless(line);
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t n = ::write(fd_, rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EPIPE && fd_ == STDOUT_FILENO) throw ClosedPipe();
    if (n < 0) throw_error(ErrorCode::io, "{}: write failed: {}", name_, strerror(errno));
    rest.remove_prefix(n);
  }
}

}  // namespace tandem::tools
