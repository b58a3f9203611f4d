// NCCL, loaded when it is needed: the program runs on machines without it, and is built where it is not.
#pragma once

#include "collectives/nccl/shim.h"

namespace tandem {

// The functions of libtandem_nccl.so, which lies beside the program: in ../lib/tandem/ from its folder, or in that folder. It
// stays loaded until the program ends. Throws Error(io) that says what is missing: our library (the program was built
// without NCCL) or NCCL itself.
const NcclFunctions& nccl_library();

}  // namespace tandem
