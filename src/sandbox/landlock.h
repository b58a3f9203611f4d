// Landlock: limits that the kernel puts on the files, TCP ports and processes that this process can still reach.
// Linux has it since 5.13 (interface version 1); each later version limits more.
//
// The limits hold for the calling thread, for all that it starts later, and for good. Threads that run already are not
// limited. Nothing here throws; a failure is an errno.
#pragma once

#include <span>
#include <string>

namespace tandem::sandbox {

enum class Access {
  read,    // read files, list folders
  write,   // also write, create, rename and remove files (no folders, links or devices)
  device,  // read, write and control a device
};

// A file, or a folder with everything below it. Links are followed.
struct PathRule {
  std::string path;
  Access access = Access::read;
};

// The interface version of this kernel, 0 if it has no Landlock or it is switched off.
int landlock_abi();

enum class Network { closed, open };

// From now on only what the rules name can be opened. Rules for paths that cannot be opened are skipped. TCP is closed
// (unless the network stays open) and signals to other processes are, where the kernel's version can. Returns 0, or errno if nothing is limited. Needs
// PR_SET_NO_NEW_PRIVS.
int restrict_files(int abi, std::span<const PathRule> rules, Network network = Network::closed);

}  // namespace tandem::sandbox
