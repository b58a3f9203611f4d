#include "sandbox/sandbox.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/sanitized.h"
#include "sandbox/syscall_filter.h"
#include "sandbox/system_files.h"

namespace tandem::sandbox {
namespace {

// The administrator's powers, except to open files of others, to lock memory and to place threads. With all of them even a
// limited process may look into others.
void drop_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  if (syscall(SYS_capget, &header, sets) != 0) return;
  uint32_t keep = 0;
  for (const int capability :
       {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_IPC_LOCK, CAP_SYS_NICE, CAP_SYS_RESOURCE})
    keep |= 1u << capability;
  sets[0].effective &= keep;
  sets[0].permitted &= keep;
  sets[1] = {};
  (void)syscall(SYS_capset, &header, sets);
}

std::vector<PathRule> rules_of(const Needs& needs, bool gpus) {
  std::vector<PathRule> rules = system_files();
  if (gpus) {
    const std::vector<PathRule> driver = gpu_driver_files();
    rules.insert(rules.end(), driver.begin(), driver.end());
  }
  if (needs.mpi) {
    const std::vector<PathRule> mpi = mpi_files();
    rules.insert(rules.end(), mpi.begin(), mpi.end());
  }
  rules.insert(rules.end(), needs.files.begin(), needs.files.end());
  return rules;
}

}  // namespace

std::string why_never_confined() {
  return kSanitized ? "built with a sanitizer" : "";
}

std::string InForce::text() const {
  const std::string files = landlock_abi > 0 ? format("files limited (Landlock {})", landlock_abi)
                                             : format("files not limited: {}", no_landlock);
  const std::string calls =
      filter ? format("no other programs, {}, no debugging (seccomp)", mpi ? "network for MPI" : "no network")
             : format("system calls not limited: {}", no_filter);
  return format("sandbox: {}; {}{}", files, calls,
                io_uring ? "; io_uring is allowed for reading layers from disk" : "");
}

InForce confine(const Needs& needs) {
  InForce in_force;
  in_force.io_uring = needs.io_uring;
  in_force.mpi = needs.mpi;
  if (const std::string why = why_never_confined(); !why.empty()) {
    in_force.no_landlock = in_force.no_filter = why;
    return in_force;
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
    in_force.no_landlock = in_force.no_filter = strerror(errno);
    return in_force;
  }
  drop_capabilities();
  const bool gpus = needs.gpus && has_gpu_driver();
  if (!needs.why_every_file.empty()) {
    in_force.no_landlock = needs.why_every_file;
  } else if (const int abi = landlock_abi(); abi == 0) {
    in_force.no_landlock = "this kernel has no Landlock";
  } else if (const int error =
                 restrict_files(abi, rules_of(needs, gpus), needs.mpi ? Network::open : Network::closed);
             error != 0) {
    in_force.no_landlock = strerror(error);
  } else {
    in_force.landlock_abi = abi;
  }
  const int error = install_filter(
      {.io_uring = needs.io_uring, .local_sockets = gpus && has_gpu_daemon(), .sockets = needs.mpi});
  in_force.filter = error == 0;
  if (error != 0) in_force.no_filter = strerror(error);
  return in_force;
}

}  // namespace tandem::sandbox
