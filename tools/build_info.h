// Which commit the program was built from.
#pragma once

namespace tandem::tools {

const char* build_commit();  // short hash, "unknown" for a build outside of git
int build_number();          // how many commits lead up to it, 0 if not known

}  // namespace tandem::tools
