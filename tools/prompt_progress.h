// The progress of a prompt that takes a while to read: a bar on a line of its own on stderr, erased before
// anything else is shown. The cursor must be at the start of a line. While the bar is there, a Ctrl-C shows
// at once that it was noticed. Shows nothing if stderr is not a terminal or cannot erase.
//
// One at a time, from one thread.
#pragma once

#include <cstdint>

#include "base/progress.h"

namespace tandem::tools {

class PromptProgress {
 public:
  explicit PromptProgress(bool animate = true) : animate_(animate) {}
  ~PromptProgress() { clear(); }

  // Whether a prompt of so many tokens gets a bar. A short one is read before anybody could read the bar.
  bool shows(int64_t n_prompt) const;
  void update(int64_t n_done, int64_t n_prompt);  // erases the bar when all is done
  void clear();

 private:
  bool animate_;
  StatusLine line_;
};

}  // namespace tandem::tools
