#include "tools/build_info.h"

#include "base/error.h"
#include "cpu/isa.h"

namespace tandem::tools {

// CMakeLists.txt sets what this file says for this file alone, so that a commit makes little else compile again.
const char* build_commit() {
  return TANDEM_COMMIT;
}
int build_number() {
  return TANDEM_BUILD_NUMBER;
}

std::string version_text() {
  const std::string_view cuda = TANDEM_CUDA_BUILD;
  return format(
      "tandem {} (commit {}, build {})\n"
      "compiler: {}, {}\n"
      "CPU:      {}; here {}\n"
      "GPU:      {}\n",
      TANDEM_VERSION, build_commit(), build_number(), TANDEM_COMPILER, TANDEM_BUILD_TYPE, TANDEM_ISAS,
      cpu::isa_name(cpu::best_isa()), cuda.empty() ? "built without CUDA" : cuda);
}

}  // namespace tandem::tools
