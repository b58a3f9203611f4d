#include "tools/confirm.h"

#include <unistd.h>

#include <cstdio>
#include <string_view>

#include "base/error.h"

namespace tandem::tools {

bool confirmed(const std::string& what) {
  if (isatty(STDIN_FILENO) == 0) {
    throw Error(ErrorCode::usage,
                "cannot ask whether to remove " + what + ": stdin is no terminal, needed --yes");
  }
  fprintf(stderr, "remove %s? [y/N] ", what.c_str());
  fflush(stderr);
  std::string answer(16, '\0');
  if (fgets(answer.data(), static_cast<int>(answer.size()), stdin) == nullptr) return false;
  answer.resize(answer.find_first_of(std::string_view("\n\0", 2)));
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace tandem::tools
