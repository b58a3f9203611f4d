// MPI, loaded when it is asked for: the program runs on machines without it, and is built where it is not.
#pragma once

#include "ranks/mpi/shim.h"

namespace tandem {

// The functions of libtandem_mpi.so, which lies beside the program: in ../lib/tandem/ from its folder, or in that folder. It
// stays loaded until the program ends. Throws Error(io) that says what is missing: our library (the program was built
// without MPI) or MPI itself.
const MpiFunctions& mpi_library();

}  // namespace tandem
