#include "tools/build_info.h"

namespace tandem::tools {

// Both are set by CMakeLists.txt for this file alone, so that a commit makes little else compile again.
const char* build_commit() {
  return TANDEM_COMMIT;
}
int build_number() {
  return TANDEM_BUILD_NUMBER;
}

}  // namespace tandem::tools
