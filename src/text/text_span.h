// A run of bytes within a text.
#pragma once

#include <cstddef>

namespace tandem {

struct TextSpan {
  size_t begin, end;
  bool operator==(const TextSpan&) const = default;
};

}  // namespace tandem
