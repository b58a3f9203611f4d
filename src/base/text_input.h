// The one reader of whole texts: prompts, templates, messages, grammars, settings. It says how large they may be,
// because what is no regular file (a pipe, a device) may never end.
//
// Errors are Error(io) for what cannot be opened or read, and Error(bad_file) for what is too large or not of
// the kind needed; they name the file, as one printable line. Any thread.
#pragma once

#include <cstddef>
#include <string>

namespace tandem {

inline constexpr size_t kMaxFileBytes = size_t{1} << 30;     // of a regular file
inline constexpr size_t kMaxStreamBytes = size_t{64} << 20;  // of anything else

// "-" is standard input. A smaller `max_bytes` holds for every kind of file.
std::string read_text(const std::string& path, size_t max_bytes = kMaxFileBytes);

// The same for a file that the user need not have named, such as one of a folder: refuses what is not a regular
// file, and never waits for the other end of a FIFO.
std::string read_regular_file(const std::string& path, size_t max_bytes = kMaxFileBytes);

// The same; "" for a file that is missing or not a regular one, cannot be read or is too large.
std::string read_optional_file(const std::string& path, size_t max_bytes);

}  // namespace tandem
