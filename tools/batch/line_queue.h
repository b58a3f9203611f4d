// LineQueue: where a replica of the model takes the lines that it answers, and where its answers go: files of this process
// (file_queue.h), or those of rank 0 (ranks.h).
#pragma once

#include <cstdint>
#include <string>

#include "tools/batch/line_reader.h"

namespace tandem::tools {

struct InputLine {
  int64_t index = 0;  // in the input, from 1
  bool too_long = false;
  std::string text;  // empty if too long
};

struct LineAnswer {
  int64_t index = 0;
  std::string json;         // a line of the output, without its newline
  std::string error;        // what is wrong with the line; empty: it is answered
  int64_t n_generated = 0;  // tokens
};

class LineQueue {
 public:
  virtual ~LineQueue() = default;
  using Result = LineReader::Result;
  using Wait = LineReader::Wait;

  // Takes a line to answer, in any order. n_room: how many lines could be begun now, this one included.
  virtual Result next(InputLine& line, Wait wait, int64_t n_room) = 0;
  virtual void answer(LineAnswer answer) = 0;
  // Called after each step; n_generated: tokens of the replica so far.
  virtual void show_progress(int64_t n_generated) = 0;
};

}  // namespace tandem::tools
