// A program in a pseudo-terminal, as a person at a keyboard has it: keys go in, what the screen gets comes
// out.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace tandem::test {

struct TerminalOptions {
  std::vector<std::string> environment;  // "NAME=value", added to ours; "NAME" alone is removed
  int rows = 24, columns = 80;
  std::string stdout_file;  // stdout goes there and not to the terminal
};

class Terminal {
 public:
  // Starts argv[0] with these arguments.
  explicit Terminal(const std::vector<std::string>& argv, const TerminalOptions& options = {});
  ~Terminal();  // kills what still runs
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys);
  void resize(int rows, int columns);
  void hang_up();  // the window is closed

  // Reads until `text` has come (true) or the time is over or the program gone (false). What came before, and
  // the text, are in seen() and not looked at again.
  bool wait_for(const std::string& text, int timeout_ms = 60000);
  const std::string& seen() const { return seen_; }
  // What came and was not waited for, `ms` after the last of it; what never ends is cut after ten times that.
  std::string rest(int ms = 300);
  // Reads on until the program ends: its exit code, or 128 + signal; -1 when it does not end.
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
};

}  // namespace tandem::test
