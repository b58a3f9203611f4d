#include "gguf/read_whole.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "gguf/pieces.h"

namespace tandem {

void read_whole(int fd, std::span<std::byte> to, const std::string& path) {
  for_each_piece(to.size(), [&](size_t begin, size_t end) {
    for (size_t at = begin; at < end;) {
      const ssize_t n = pread(fd, to.data() + at, end - at, static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        throw_error(ErrorCode::io, "{}: reading {} bytes stopped at offset {}: {}", path, to.size(), at,
                    n < 0 ? strerror(errno) : "the file ends there");
      }
      at += static_cast<size_t>(n);
    }
  });
}

}  // namespace tandem
