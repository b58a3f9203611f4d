// BatchInput: the descriptor of the file of prompts, "-" for stdin. Throws Error(io) that starts with `name`.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/error.h"

namespace tandem::tools {

class BatchInput {
 public:
  BatchInput(const std::string& path, const std::string& name)
      : fd_(path == "-" ? 0 : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw_error(ErrorCode::io, "{}: cannot open: {}", name, strerror(errno));
  }
  ~BatchInput() {
    if (fd_ > 0) close(fd_);
  }
  BatchInput(const BatchInput&) = delete;
  BatchInput& operator=(const BatchInput&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace tandem::tools
