// LineEditor: lines typed at a terminal, with editing, history and completion (libedit). A message may have
// several lines: Alt-Enter breaks one, a backslash at its end goes on with the next, and what is pasted keeps
// its breaks.
//
// Owns the editor and its history file; one at a time, one thread. After read() the terminal does not echo;
// the destructor gives it back as the constructor found it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tandem::tools {

struct Completion {
  size_t begin = 0;                     // byte of the line where what is completed starts
  std::vector<std::string> candidates;  // for the text from there to the cursor
};

struct LineEditorOptions {
  std::string prompt = "> ";
  bool color = false;
  std::string history_file;  // "": no history is kept
  // Candidates for a line that ends at the cursor.
  std::function<Completion(const std::string& line)> complete;
};

class LineEditor {
 public:
  enum class End { line, end_of_input, interrupted };
  struct Line {
    End end;
    std::string text;  // UTF-8, without the last newline
  };

  explicit LineEditor(LineEditorOptions options);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // `initial` stands in the line already, to be edited. Throws Error(io) when the terminal cannot be read.
  Line read(const std::string& initial = "");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// $XDG_STATE_HOME/tandem/NAME, or ~/.local/state/tandem/NAME; "" when there is no home. Makes the folder.
std::string state_file(const std::string& name);

}  // namespace tandem::tools
