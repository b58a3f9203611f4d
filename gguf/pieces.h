// Work on many bytes, divided over threads in pieces: a single one copies more slowly than memory takes it.
#pragma once

#include <cstddef>
#include <functional>

namespace tandem {

// Calls fn(begin, end) for pieces of [0, n_bytes), from several threads if there is more than one piece. Throws what it throws,
// the first of all; the rest is then left out.
void for_each_piece(size_t n_bytes, const std::function<void(size_t begin, size_t end)>& fn);

}  // namespace tandem
