// A line on a terminal's stderr that says what is going on and is wiped away by what comes next. Where stderr
// is no terminal it shows nothing.
#pragma once

#include <string>

namespace tandem::tools {

class StatusLine {
 public:
  // shown: false for a line that never shows, whatever stderr is.
  explicit StatusLine(bool shown);
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  bool shown() const { return shown_; }
  void show(const std::string& text);
  void clear();

 private:
  bool shown_;
  bool dirty_ = false;
};

}  // namespace tandem::tools
