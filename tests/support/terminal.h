// A program in a pseudo-terminal: tests send keys, read the bytes that it writes and see the screen.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "support/screen.h"

namespace tandem::test {

struct TerminalOptions {
  std::vector<std::string> environment;  // "NAME=value" is added; "NAME" alone is removed
  int rows = 24, columns = 80;
  std::string stdout_file;  // redirects stdout to this file
};

class Terminal {
 public:
  // Starts argv[0] with these arguments.
  explicit Terminal(const std::vector<std::string>& argv, const TerminalOptions& options = {});
  ~Terminal();  // kills the program if it still runs
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys);
  void resize(int rows, int columns);
  void hang_up();  // the window is closed

  // Reads until `text` appears (true), or until a timeout or the end of the program (false). The output up to
  // and including the text is then in seen() and is not searched again.
  bool wait_for(const std::string& text, int timeout_ms = 60000);
  const std::string& seen() const { return seen_; }
  // Reads until the screen is like that (true), or until a timeout or the end of the program.
  bool wait_for_screen(const std::function<bool(const Screen&)>& condition, int timeout_ms = 60000);
  bool wait_for_row(const std::string& text, int timeout_ms = 60000);  // on some row of the screen
  // The screen after all that was read; resize() resizes it.
  const Screen& screen() const { return screen_; }
  pid_t child() const { return child_; }
  // Returns the remaining output, once there was none for `ms`, or after ten times that.
  std::string rest(int ms = 300);
  // Reads until the program ends: returns its exit code, or 128 + signal; -1 if it does not end.
  int wait_for_exit(int timeout_ms = 60000);
  bool echoes() const;  // whether the terminal is in its usual mode

 private:
  bool read_some(int timeout_ms);
  bool ended();

  int master_ = -1;
  pid_t child_ = -1;
  int status_ = 0;
  bool ended_ = false;
  std::string unseen_, seen_;
  Screen screen_;
};

}  // namespace tandem::test
