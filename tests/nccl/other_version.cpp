// A libtandem_nccl.so of another version of the program, or, with NO_FUNCTION, of something else.
#include "collectives/nccl/shim.h"

#ifndef NO_FUNCTION
extern "C" __attribute__((visibility("default"))) const tandem::NcclFunctions* tandem_nccl_functions() {
  static const tandem::NcclFunctions functions{tandem::kNcclFunctionsVersion + 1, {}, {}, {}, {}, {}, {}};
  return &functions;
}
#endif
