// LineEditor: input from a terminal with editing, history and completion (libedit). A message may have
// several lines: Alt-Enter, or a backslash at the end of a line, starts a new one, and pasted text keeps its
// line breaks.
//
// The prompt follows a new size of the window and a return from Ctrl-Z. A signal that ends the program (see
// signals.h) is an end of input.
//
// Owns the editor and its history file. Use one at a time, from one thread. After read() the terminal does
// not echo; the destructor restores the settings that the constructor found.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tandem::tools {

struct Completion {
  size_t begin = 0;                     // byte offset of the completed word
  std::vector<std::string> candidates;  // replacements for the text from there to the cursor
};

// What the program says to an editor in another process (see typed_lines.h).
enum class Heard { nothing, interrupt, end };

struct LineEditorOptions {
  std::string prompt = "> ";
  bool color = false;
  bool simple = false;       // send no control sequences
  std::string history_file;  // "": keep no history
  // Returns candidates for the line up to the cursor.
  std::function<Completion(const std::string& line)> complete;
  // Of an editor in another process: where the program speaks, and what reads it.
  int program = -1;
  std::function<Heard()> heard;
};

class LineEditor {
 public:
  enum class End { line, end_of_input, interrupted };
  struct Line {
    End end;
    std::string text;  // UTF-8, without the last newline; of an interrupted one, what was typed of it
  };

  explicit LineEditor(LineEditorOptions options);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // The line starts with the text `initial`. Throws Error(io) if the terminal cannot be read.
  Line read(const std::string& initial = "");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What is typed between two reads stays invisible until the next. A shell that continues the program turns the
// echo on again.
void hide_typed_keys();

// $XDG_STATE_HOME/tandem/NAME, or ~/.local/state/tandem/NAME; "" if there is no home. Creates the folder.
std::string state_file(const std::string& name);

}  // namespace tandem::tools
