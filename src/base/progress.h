// Progress of long work, on stderr: on a terminal a bar with rate and time left, erased by the next line;
// elsewhere one log line per finished item. Silent below log level info.
//
// Used by one thread. Log messages may come from any thread: they erase the bar first.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// A line on the terminal that stays until it is erased. Shows nothing if stderr is not a terminal or cannot
// erase (TERM=dumb). One at a time.
class StatusLine {
 public:
  explicit StatusLine(bool wanted = true);
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool shown() const { return shown_; }
  void show(std::string_view text);  // one line without control characters; cut to the terminal's width
  void clear();

 private:
  bool shown_;
};

// The state of a piece of work.
struct ProgressState {
  std::string_view unit;  // "weights", "tokens"; "bytes" print as KiB, MiB, ...
  int64_t done = 0, total = 0;
  double seconds = 0;     // since the start
  std::string_view item;  // being worked on
  int64_t before = 0;     // of `done`, by an earlier run: not part of the rate
};

// Returns "[####....]  50%  12.3 M weights/s, 0:05 left  blk.0.attn_q.weight" in at most n_columns columns.
// Drops the item first, then the bar, if they do not fit.
std::string progress_text(const ProgressState& state, size_t n_columns);

class Progress {
 public:
  Progress(std::string unit, int64_t total, int64_t before = 0, bool wants_bar = true);

  void set_total(int64_t total) { total_ = total; }  // for work that is measured on the way

  // Draws at most ten times a second, so it is cheap to call often.
  void update(int64_t done, std::string_view item = {});
  // Logs a line for a finished item, if there is no bar.
  void item_done(const std::string& line);
  void clear() { line_.clear(); }  // before the final message
  bool animated() const { return line_.shown(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string unit_;
  int64_t total_, before_;
  StatusLine line_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

}  // namespace tandem
