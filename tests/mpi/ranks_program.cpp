// A program that mpirun starts: what Ranks must do, on those of MPI, and ends that are not as they should be. Its argument says
// what to try.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>

#include "base/error.h"
#include "ranks/mpi_ranks.h"
#include "sandbox/sandbox.h"
#include "support/rank_checks.h"

namespace tandem {
namespace {

using namespace std::chrono_literals;

int run(const std::string& what) {
  MpiRanks ranks(Launch::from_environment());
  if (what == "confined") {
    const auto in_force = sandbox::confine({.mpi = true});
    if (ranks.rank() == 0) printf("%s\n", in_force.text().c_str());
  }
  ranks.start();
  if (what == "check" || what == "confined") {
    const std::string problem = test::check_ranks(ranks);
    printf("rank %d of %d: %s\n", ranks.rank(), ranks.size(),
           problem.empty() ? "all is well" : problem.c_str());
  } else if (what == "circle") {  // each waits for the next
    (void)ranks.receive((ranks.rank() + 1) % ranks.size(), 0);
  } else if (what == "mixed") {
    if (ranks.rank() == 0) (void)ranks.receive(kAnyRank, 0);
    ranks.barrier();
  } else if (what == "slow") {  // no deadlock: the last rank computes for longer than one is suspected after
    if (ranks.rank() == ranks.size() - 1) std::this_thread::sleep_for(5s);
    ranks.barrier();
  } else if (what == "give up") {
    if (ranks.rank() == 1) ranks.abort(ranks.name_of(1) + " gives up", 6);
    ranks.barrier();
  } else if (what == "stop") {
    ranks.barrier();
    if (ranks.rank() == 1) raise(SIGSTOP);
    ranks.barrier();
  }
  ranks.finish();
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) {
  try {
    return tandem::run(argc > 1 ? argv[1] : "");
  } catch (const tandem::Error& e) {
    fprintf(stderr, "error: %s\n", e.what());
    return static_cast<int>(e.code());
  }
}
