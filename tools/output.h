// The program's stdout. Buffers until flush(); a streaming command flushes after each token. Checks every
// write: a full disk is Error(io), and a closed pipe is ClosedPipe, which ends the program quietly. Use one
// at a time, from one thread. Does not own the descriptor.
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace tandem::tools {

// The reader of the pipe has closed it: exit code 5 without a message.
class ClosedPipe : public Error {
 public:
  ClosedPipe() : Error(ErrorCode::io, "the reader of the output has closed it") {}
};

class Output {
 public:
  explicit Output(int descriptor = 1);
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;
  // Flushes, but ignores errors; call flush() first.
  ~Output();

  void write(std::string_view text);
  // Text of a model or of a file: on a terminal, harmless(). Complete characters only.
  void write_text(std::string_view text);
  void flush();

 private:
  int descriptor_;
  bool terminal_;
  std::string buffer_;
};

}  // namespace tandem::tools
