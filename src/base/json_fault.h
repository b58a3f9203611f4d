// What the JSON library found wrong, without its own numbers in front of it.
#pragma once

#include <exception>
#include <string>

#include "base/error.h"

namespace tandem {

// "parse error at line 1, column 2: ..." of "[json.exception.parse_error.101] parse error at ...", on one line.
inline std::string json_fault(const std::exception& error, size_t limit = 200) {
  const std::string text = error.what();
  const size_t end = text.rfind("[json.exception", 0) == 0 ? text.find("] ") : std::string::npos;
  return printable(end == std::string::npos ? text : text.substr(end + 2), limit);
}

}  // namespace tandem
