#include "sandbox/syscall_filter.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace tandem::sandbox {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArchitecture = 0;  // no filter
#endif

// clang-format off
constexpr int kRefused[] = {
    // Other programs and processes.
    SYS_execve, SYS_execveat,
#ifdef SYS_fork
    SYS_fork, SYS_vfork,
#endif
    SYS_ptrace, SYS_process_vm_readv, SYS_process_vm_writev, SYS_kcmp, SYS_tkill, SYS_rt_sigqueueinfo,
    SYS_setns, SYS_unshare,
#ifdef SYS_pidfd_open
    SYS_pidfd_open, SYS_pidfd_send_signal,
#endif
#ifdef SYS_pidfd_getfd
    SYS_pidfd_getfd,
#endif
#ifdef SYS_process_madvise
    SYS_process_madvise,
#endif
    // Owners, modes and attributes.
#ifdef SYS_chmod
    SYS_chmod, SYS_chown, SYS_lchown, SYS_mknod,
#endif
    SYS_fchmod, SYS_fchmodat, SYS_fchown, SYS_fchownat, SYS_mknodat,
    SYS_setxattr, SYS_lsetxattr, SYS_fsetxattr, SYS_removexattr, SYS_lremovexattr, SYS_fremovexattr,
    // For administrators, and doors into the kernel.
    SYS_mount, SYS_umount2, SYS_pivot_root, SYS_chroot, SYS_swapon, SYS_swapoff, SYS_reboot, SYS_acct, SYS_quotactl,
    SYS_sethostname, SYS_setdomainname, SYS_settimeofday, SYS_clock_settime, SYS_adjtimex, SYS_clock_adjtime,
    SYS_init_module, SYS_finit_module, SYS_delete_module, SYS_kexec_load, SYS_bpf, SYS_perf_event_open,
    SYS_userfaultfd, SYS_add_key, SYS_request_key, SYS_keyctl, SYS_syslog, SYS_vhangup,
    SYS_open_by_handle_at, SYS_fanotify_init, SYS_lookup_dcookie,
#ifdef SYS_kexec_file_load
    SYS_kexec_file_load,
#endif
#ifdef SYS_iopl
    SYS_iopl, SYS_ioperm,
#endif
#ifdef SYS_open_tree
    SYS_open_tree, SYS_move_mount, SYS_fsopen, SYS_fsconfig, SYS_fsmount, SYS_fspick,
#endif
#ifdef SYS_mount_setattr
    SYS_mount_setattr,
#endif
};
// The network, and daemons.
constexpr int kSocketCalls[] = {SYS_connect, SYS_bind, SYS_listen, SYS_accept, SYS_accept4};
// clang-format on

// Instructions for the kernel's interpreter. A number that is not refused falls through to the next test.
class Filter {
 public:
  explicit Filter(const FilterOptions& options) {
    load(offsetof(seccomp_data, arch));
    add(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0);
    refuse_now(EPERM);
    load(offsetof(seccomp_data, nr));
#if defined(__x86_64__)
    add(BPF_JMP | BPF_JGE | BPF_K, 0x40000000, 0, 1);  // the same calls under other numbers (x32)
    refuse_now(ENOSYS);
#endif
    for (const int number : kRefused) refuse(number, EPERM);
    if (!options.sockets) {
      for (const int number : kSocketCalls) refuse(number, EPERM);
    }
#ifdef SYS_clone3
    refuse(SYS_clone3,
           ENOSYS);  // its flags are in memory, where no filter looks; the C library then uses clone
#endif
    only_with_bit(SYS_clone, 0, CLONE_THREAD);
    const auto own_pid = static_cast<uint32_t>(getpid());
    for (const int number : {SYS_kill, SYS_tgkill, SYS_rt_tgsigqueueinfo}) only_if(number, 0, {own_pid});
    only_if(SYS_prlimit64, 0, {0, own_pid});
    only_unless(SYS_ioctl, 1, {TIOCSTI, TIOCLINUX});
    if (options.local_sockets && !options.sockets) {
      only_if(SYS_socket, 0, {AF_UNIX});
    } else if (!options.sockets) {
      refuse(SYS_socket, EPERM);
    }
#ifdef SYS_io_uring_setup
    if (!options.io_uring) {
      for (const int number : {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register})
        refuse(number, EPERM);
    }
#endif
    allow_now();
  }

  sock_fprog program() {
    return {static_cast<unsigned short>(code_.size()), code_.data()};
  }

 private:
  void add(int operation, uint32_t value, uint8_t if_true = 0, uint8_t if_false = 0) {
    code_.push_back({static_cast<uint16_t>(operation), if_true, if_false, value});
  }
  void load(size_t offset) {
    add(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
  }
  void allow_now() {
    add(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  void refuse_now(int error) {
    add(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error));
  }
  // Skips the next n instructions unless the call has this number.
  void if_call(int number, size_t n) {
    add(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, static_cast<uint8_t>(n));
  }
  // The lower half of an argument: all that the kernel looks at where these are used.
  void load_argument(int index) {
    load(offsetof(seccomp_data, args) + static_cast<size_t>(index) * 8);
  }

  void refuse(int number, int error) {
    if_call(number, 1);
    refuse_now(error);
  }
  void only_with_bit(int number, int argument, uint32_t bit) {
    if_call(number, 4);
    load_argument(argument);
    add(BPF_JMP | BPF_JSET | BPF_K, bit, 1, 0);
    refuse_now(EPERM);
    allow_now();
  }
  void only_if(int number, int argument, std::initializer_list<uint32_t> values) {
    if_call(number, 2 * values.size() + 2);
    load_argument(argument);
    for (const uint32_t value : values) {
      add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      allow_now();
    }
    refuse_now(EPERM);
  }
  void only_unless(int number, int argument, std::initializer_list<uint32_t> values) {
    if_call(number, 2 * values.size() + 2);
    load_argument(argument);
    for (const uint32_t value : values) {
      add(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      refuse_now(EPERM);
    }
    allow_now();
  }

  std::vector<sock_filter> code_;
};

}  // namespace

int install_filter(const FilterOptions& options) {
  if (kArchitecture == 0) return ENOSYS;
  Filter filter(options);
  sock_fprog program = filter.program();
  const long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program);
  if (result < 0) return errno;
  return result > 0 ? EBUSY : 0;  // a thread has a filter of its own
}

}  // namespace tandem::sandbox
