#include "tools/batch/file_queue.h"

#include <sys/stat.h>

#include <algorithm>

#include "base/interrupt.h"
#include "base/log.h"
#include "tools/batch/input.h"
#include "tools/batch/request.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

constexpr auto kLogInterval = std::chrono::seconds(30);

// Counts the lines to answer, if the input is a regular file and can be read twice.
std::optional<int64_t> count_lines(const std::string& path, const std::string& name,
                                   const AnswerFile& answers, const Shard& shard) {
  struct stat info {};
  if (path == "-" || stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  const BatchInput file(path, name);
  LineReader reader(file.get(), name);
  std::string line;
  int64_t n = 0;
  while (reader.next(line) == LineReader::Result::line)
    n += !is_blank(line) && shard.has(reader.n_lines()) && !answers.has(reader.n_lines());
  return n;
}

}  // namespace

std::string input_name(const BatchOptions& options) {
  return options.input == "-" ? "stdin" : printable(options.input, 4096);
}

FileQueue::FileQueue(const BatchOptions& options, int input, AnswerFile& answers)
    : name_(input_name(options)),
      reader_(input, name_),
      answers_(answers),
      shard_(options.shard.value_or(Shard{})),
      n_lines_(count_lines(options.input, name_, answers, shard_)) {}

FileQueue::Result FileQueue::next(InputLine& line, Wait wait, int64_t) {
  for (;;) {
    const Result result = reader_.next(line.text, wait);
    if (result != Result::line) return result;
    line.index = reader_.n_lines();
    line.too_long = reader_.too_long();
    if ((!line.too_long && is_blank(line.text)) || !shard_.has(line.index)) continue;
    if (!answers_.has(line.index)) return result;
    if (!answers_.is_of(line.index, id_of(line.text))) {
      throw_error(ErrorCode::bad_file,
                  "{}: line {} and the existing answer to line {} have different ids: the answers belong "
                  "to another input",
                  name_, line.index, line.index);
    }
    if (interrupted()) return Result::not_yet;
  }
}

void FileQueue::answer(LineAnswer answer) {
  const bool is_bad = !answer.error.empty();
  if (is_bad) log_warning("{}: line {}: {}", name_, answer.index, answer.error);
  if (answers_.is_on_terminal()) clear_progress();
  answers_.write(std::move(answer.json));
  (is_bad ? n_bad_ : n_answers_) += 1;
  n_generated_ += answer.n_generated;
}

void FileQueue::clear_progress() {
  if (progress_) progress_->clear();
  status_.clear();
}

void FileQueue::show_progress(int64_t n_generated) {
  const int64_t n_done = n_answers_ + n_bad_;
  const std::string rate =
      format("{:.0f} tokens/s", static_cast<double>(n_generated) / std::max(progress_->seconds(), 1e-9));
  if (n_lines_) {
    progress_->update(n_done, rate);
  } else if (progress_->animated() && Clock::now() - shown_ > std::chrono::milliseconds(100)) {
    shown_ = Clock::now();
    status_.show(format("{} lines, ", n_done) + rate);
  }
  if (progress_->animated() || Clock::now() - logged_ < kLogInterval) return;
  logged_ = Clock::now();
  log_info("{} lines done{}, {}", n_done, n_lines_ ? format(" of {}", *n_lines_).c_str() : "", rate);
}

void FileQueue::report(const BatchStats& s, int64_t n_open) {
  clear_progress();
  if (n_answers_ + n_bad_ + n_open == 0) return log_info("{}: nothing to answer", name_);
  const double seconds = std::max(progress_->seconds(), 1e-9);
  const double shared =
      s.n_prompt > 0 ? 100.0 * static_cast<double>(s.n_reused) / static_cast<double>(s.n_prompt) : 0;
  log_info(
      "{}{} in {:.1f} s: prompts {} tokens, {:.1f} t/s, {:.0f}% of them shared; generated {} "
      "tokens, {:.1f} t/s",
      counted(n_answers_, "answer"), n_bad_ > 0 ? " and " + counted(n_bad_, "bad line") : "", seconds, s.n_prompt,
      static_cast<double>(s.n_prompt) / seconds, shared, s.n_generated,
      static_cast<double>(s.n_generated) / seconds);
  if (s.n_preempted > 0) {
    log_info(
        "the cache was full {} and {} computed again; use a larger -c or a smaller "
        "-np "
        "for speed",
        counted(s.n_preempted, "time"), counted(s.n_recomputed, "token") + (s.n_recomputed == 1 ? " was" : " were"));
  }
  if (interrupted()) {
    log_info("interrupted with {} unfinished; rerun the same command to continue", counted(n_open, "line"));
  }
}

}  // namespace tandem::tools
