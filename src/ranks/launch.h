// What started this process as one of several ranks (mpirun, srun), and a process that watches over the rank.
#pragma once

#include <optional>
#include <string>

namespace tandem {

// What the launcher says in the environment, before MPI has started.
struct Launch {
  int rank = 0, size = 1;

  // nullopt: no launcher. Knows Open MPI, PMI and PMIx (MPICH and others), and Slurm.
  static std::optional<Launch> from_environment();
};

// "node7", as the kernel names this machine.
std::string host_name();

// Divides the program in two: returns nullopt in a new process, which does the work, and its exit code in this one, when it
// has ended. If a signal kills the new process, reports which rank it was, and returns 5; a launcher then ends the others and
// exits with 5 too, instead of 128 and the signal. If the launcher is gone, kills the new process. If this process is
// killed, the new one dies with it.
//
// Call it first, while the program has one thread and no files open. Without a second process, if the system gives none,
// returns nullopt.
std::optional<int> watch_rank(const Launch& launch);

}  // namespace tandem
