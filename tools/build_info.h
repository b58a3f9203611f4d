// What the program was built from and for.
#pragma once

#include <string>

namespace tandem::tools {

const char* build_commit();  // short hash, "unknown" for a build outside of git
int build_number();          // how many commits lead up to it, 0 if not known

// Some lines: version, commit, compiler, build type, instruction sets built and the one used on this machine, CUDA.
std::string version_text();

}  // namespace tandem::tools
