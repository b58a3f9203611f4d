// A seccomp filter: system calls that a program that runs models has no use for fail with EPERM, in all threads.
//
// It is a list of what is refused, not of what is allowed, because a driver or a newer C library may need calls that
// nobody saw in a test. Refused are: other programs and processes, debugging, sockets, other processes' memory, signals
// to others, characters put into the terminal's input, io_uring (its operations pass no filter), owners and modes of
// files, and everything for administrators. It is written for the kernel's interpreter directly: a table of jumps needs no
// library that packages would carry along.
#pragma once

namespace tandem::sandbox {

struct FilterOptions {
  bool io_uring = false;       // layers are read from disk with it
  bool local_sockets = false;  // AF_UNIX: a GPU's driver asks a daemon
  bool sockets = false;        // of all kinds, also to be connected to: MPI reaches other machines
};

// Installs the filter for good. Returns 0, or errno. Needs PR_SET_NO_NEW_PRIVS.
int install_filter(const FilterOptions& options);

}  // namespace tandem::sandbox
