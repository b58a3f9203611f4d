// FileQueue: the lines of the input that have no answer yet, and the file of answers, with progress on stderr.
//
// Used by one thread at a time. Throws Error(io | bad_file).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/progress.h"
#include "engine/batcher.h"
#include "tools/batch/answer_file.h"
#include "tools/batch/line_queue.h"
#include "tools/batch/options.h"

namespace tandem::tools {

class FileQueue : public LineQueue {
 public:
  // `input` is read from where it stands. Counts the lines to answer first, if the input can be read twice.
  FileQueue(const BatchOptions& options, int input, AnswerFile& answers);

  // Call when the models are loaded: time counts from here.
  void start() { progress_.emplace("lines", n_lines_.value_or(0), 0, !answers_.is_piped()); }

  // Gives lines in their order. Does not wait for a slow pipe unless asked to.
  Result next(InputLine& line, Wait wait, int64_t n_room) override;
  void answer(LineAnswer answer) override;
  void show_progress(int64_t n_generated) override;

  // The last lines on stderr. s: of all replicas; n_open: lines that an interrupt left unfinished.
  void report(const BatchStats& s, int64_t n_open);
  int64_t n_bad() const { return n_bad_; }
  int64_t n_generated() const { return n_generated_; }  // tokens of the answers written

 private:
  using Clock = std::chrono::steady_clock;

  void clear_progress();

  std::string name_;
  LineReader reader_;
  AnswerFile& answers_;
  Shard shard_;
  std::optional<int64_t> n_lines_;
  std::optional<Progress> progress_;
  StatusLine status_{!answers_.is_piped()};  // if the number of lines is unknown
  Clock::time_point shown_{}, logged_ = Clock::now();
  int64_t n_answers_ = 0, n_bad_ = 0, n_generated_ = 0;
};

}  // namespace tandem::tools
