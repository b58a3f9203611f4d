// Long work told on stderr, never on stdout: on a terminal a bar with rate and time left that the next line
// wipes away, elsewhere one line of the log for each item done. Nothing is shown below log level info.
//
// Used by one thread. Messages of the log may come from any: they wipe the line first.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tandem {

// A line on a terminal's stderr that stays until it is wiped away. Shows nothing where stderr is no terminal
// (or one that cannot wipe: TERM=dumb). One at a time.
class StatusLine {
 public:
  StatusLine();
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool shown() const { return shown_; }
  void show(std::string_view text);  // cut to the width of the terminal; one line, without control characters
  void clear();

 private:
  bool shown_;
};

// How far a piece of work is.
struct ProgressState {
  std::string_view unit;  // "weights", "tokens"; "bytes" are counted in KiB, MiB, ...
  int64_t done = 0, total = 0;
  double seconds = 0;     // since the start
  std::string_view item;  // what is being worked on
};

// "[####....]  50%  12.3 M weights/s, 0:05 left  blk.0.attn_q.weight" in at most n_columns columns: without
// room the item goes first, then the bar.
std::string progress_text(const ProgressState& state, size_t n_columns);

class Progress {
 public:
  Progress(std::string unit, int64_t total);

  // Draws at most ten times a second, so call it as often as you like.
  void update(int64_t done, std::string_view item = {});
  // Where there is no bar: an item's line in the log.
  void item_done(const std::string& line);
  void clear() { line_.clear(); }  // before the last line
  bool animated() const { return line_.shown(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  std::string unit_;
  int64_t total_;
  StatusLine line_;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

}  // namespace tandem
