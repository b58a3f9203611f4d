// Reads a file into memory, a large one with several threads.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace tandem {

// Fills `to` from the start of an open file. Throws Error(io) with the offset where reading stopped.
void read_whole(int fd, std::span<std::byte> to, const std::string& path);

}  // namespace tandem
