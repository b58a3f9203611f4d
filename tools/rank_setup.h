// What a command does that runs as several ranks (--mpi): it starts MPI, reports errors as of one program, and divides a
// machine among the ranks on it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/error.h"
#include "engine/options.h"
#include "ranks/mpi_ranks.h"
#include "tools/options/options.h"

namespace tandem::tools {

// Runs `body` in each rank, in a process of its own if a launcher has started this one (see watch_rank). What it throws ends
// all ranks with one sentence, which names this rank if there are others, and the exit code. Returns when all have ended.
// Ranks other than 0 print only errors, unless -v is given, and write no log file. Throws Error(io) if MPI is missing.
void run_ranks(LogOptions log, const std::function<void(MpiRanks& ranks)>& body);

// Runs `work` and keeps what it throws, if nothing has failed before.
void attempt(std::optional<Error>& failure, const std::function<void()>& work);

// All ranks call it, at the end of a part of the work in which each may fail. If one has, rank 0 throws the error of the first
// one, naming it unless all have the same, and the others wait for the end.
void agree(Ranks& ranks, const std::optional<Error>& failure);
// All ranks must have the same text, such as the fingerprint of the model. Throws as agree() does: "... differs from that of
// rank 0".
void agree_on(Ranks& ranks, const std::string& what, const std::string& text);

// Where this rank is among those on its machine.
struct HostShare {
  int n_hosts = 1;
  int n_here = 1, number_here = 0;  // ranks on this machine; which of them this is
  int n_on_cores = 1;               // ranks on the same processors: a launcher may have given each its own
};
HostShare host_share(Ranks& ranks);
// Divides cores and GPUs, as far as the user has not said what to use: each rank has its part of the cores that it may run on,
// and one of the GPUs.
void share_host(const HostShare& share, EngineOptions& options);

}  // namespace tandem::tools
