// The sandbox of the program: before it reads a file from a stranger, it gives up what running a model does not need.
//
// confine() is for a program, never for the library: it changes the process for good. Call it before threads start that
// read untrusted data, because Landlock does not limit threads that run already. It never fails: what the kernel lacks
// (or a container forbids) is reported in InForce and left out.
#pragma once

#include <string>
#include <vector>

#include "sandbox/landlock.h"

namespace tandem::sandbox {

// What the process still has to reach, besides the system's own files.
struct Needs {
  std::vector<PathRule> files;
  std::string why_every_file;  // not empty: files are not limited, for this reason
  bool gpus = false;           // files and devices of their driver, if the machine has one
  bool io_uring = false;
  bool mpi = false;  // sockets, and memory that ranks of one machine share
};

struct InForce {
  int landlock_abi = 0;  // 0: files are not limited, for this reason
  std::string no_landlock;
  bool filter = false;  // system calls are limited; false: they are not, for this reason
  std::string no_filter;
  bool io_uring = false;  // is allowed, and passes the filter by
  bool mpi = false;       // sockets are allowed

  std::string text() const;  // one line
};

// Why this program cannot be confined, "" if it can: sanitizers need more than Needs can say.
std::string why_never_confined();

InForce confine(const Needs& needs);

}  // namespace tandem::sandbox
