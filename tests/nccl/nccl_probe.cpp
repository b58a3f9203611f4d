// Loads NCCL as the program does, and prints what that says. A copy of it lies where a test wants it.
#include <cstdio>

#include "base/error.h"
#include "collectives/nccl_library.h"

int main() {
  try {
    tandem::nccl_library();
    std::puts("loaded");
  } catch (const tandem::Error& e) {
    std::printf("%d %s\n", static_cast<int>(e.code()), e.what());
  }
  return 0;
}
