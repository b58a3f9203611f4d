// What a confined process can and cannot do, tried in processes that confine themselves.
#include "sandbox/sandbox.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "sandbox/syscall_filter.h"
#include "support/confined.h"

namespace tandem::sandbox {
namespace {

namespace fs = std::filesystem;
using test::in_child;

std::string result_of(long result) {
  return result >= 0 ? "ok" : strerrorname_np(errno);
}
std::string opening(const std::string& path, int flags = O_RDONLY) {
  return result_of(open(path.c_str(), flags | O_CLOEXEC, 0600));
}

class Sandbox : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_never_confined().empty()) GTEST_SKIP() << why_never_confined();
    char name[] = "/tmp/tandem-sandbox-XXXXXX";
    folder_ = mkdtemp(name);
    for (const char* file : {"model", "secret"}) std::ofstream(folder_ + "/" + file) << file;
    fs::create_directories(folder_ + "/cache/below");
    fs::create_symlink("model", folder_ + "/link");
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  Needs needs() const { return {.files = {{path("model")}, {path("cache"), Access::write}}}; }

  std::string folder_;
};

class SandboxFiles : public Sandbox {
 protected:
  void SetUp() override {
    Sandbox::SetUp();
    if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  }
};

TEST_F(SandboxFiles, OpensWhatIsNamedAndNothingElse) {
  EXPECT_EQ(in_child([&] {
              const InForce f = confine(needs());
              return f.no_landlock + opening(path("model")) + " " + opening(path("secret")) + " " +
                     opening("/etc/passwd") + " " + opening(path("model"), O_RDWR) + " " +
                     opening(path("new"), O_CREAT | O_WRONLY) + " " + opening(folder_) + " " +
                     opening(path("no such file"));
            }),
            "ok EACCES EACCES EACCES EACCES EACCES ENOENT");
}

TEST_F(SandboxFiles, FollowsLinksOfRules) {
  EXPECT_EQ(in_child([&] {
              confine({.files = {{path("link")}}});
              return opening(path("link")) + " " + opening(path("model")) + " " + opening(path("secret"));
            }),
            "ok ok EACCES");
}

TEST_F(SandboxFiles, WritesBelowAFolder) {
  EXPECT_EQ(in_child([&] {
              confine(needs());
              std::string said = opening(path("cache/below/new"), O_CREAT | O_RDWR);
              said +=
                  " " + result_of(rename(path("cache/below/new").c_str(), path("cache/below/final").c_str()));
              said += " " + result_of(truncate(path("cache/below/final").c_str(), 10));
              said += " " + result_of(unlink(path("cache/below/final").c_str()));
              said += " " + result_of(rename(path("model").c_str(), path("cache/model").c_str()));
              return said + " " + result_of(unlink(path("secret").c_str()));
            }),
            "ok ok ok ok EACCES EACCES");
}

TEST_F(SandboxFiles, KeepsDescriptorsAndPipes) {
  EXPECT_EQ(in_child([&] {
              const int before = open(path("secret").c_str(), O_RDWR | O_APPEND);
              int ends[2];
              if (pipe(ends) != 0) return std::string("no pipe");
              confine(needs());
              char byte;
              return result_of(read(before, &byte, 1)) + " " + result_of(write(before, "x", 1)) + " " +
                     result_of(ftruncate(before, 1)) + " " + opening("/dev/fd/" + std::to_string(ends[0])) +
                     " " + opening("/dev/fd/" + std::to_string(before));
            }),
            "ok ok ok ok EACCES");
}

TEST_F(SandboxFiles, ReadsTheSystem) {
  EXPECT_EQ(in_child([&] {
              confine(needs());
              return opening("/proc/meminfo") + " " + opening("/proc/self/status") + " " +
                     opening("/sys/devices/system/cpu/online") + " " + opening("/dev/urandom") + " " +
                     opening("/dev/null", O_WRONLY) + " " + opening("/usr/bin/env") + " " +
                     opening("/proc/" + std::to_string(getppid()) + "/environ");
            }),
            "ok ok ok ok ok ok EACCES");
}

TEST_F(SandboxFiles, EveryVersionOfTheInterfaceLimits) {
  for (int abi = 1; abi <= landlock_abi(); ++abi) {
    EXPECT_EQ(in_child([&] {
                prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                const std::vector<PathRule> rules = {
                    {path("model")}, {path("cache"), Access::write}, {"/dev/null", Access::device}};
                const int error = restrict_files(abi, rules);
                return std::to_string(error) + " " + opening(path("model")) + " " + opening(path("secret")) +
                       " " + opening(path("cache/new"), O_CREAT | O_RDWR | O_TRUNC) + " " +
                       opening("/dev/null", O_RDWR);
              }),
              "0 ok EACCES ok ok")
        << "version " << abi;
  }
}

TEST_F(SandboxFiles, MissingPathsAreNoFailure) {
  EXPECT_EQ(in_child([&] {
              const InForce f = confine({.files = {{path("model")}, {path("no such file")}, {""}}});
              return std::to_string(f.landlock_abi > 0) + " " + opening(path("model"));
            }),
            "1 ok");
}

// A machine with a GPU as far as files tell: the devices are plain files, and $HOME is the test's folder.
class SandboxOfGpus : public SandboxFiles {
 protected:
  void SetUp() override {
    SandboxFiles::SetUp();
    if (IsSkipped()) return;
    fs::create_directories(path("dev/dri"));
    fs::create_directories(path("home/.nv/ComputeCache"));
    fs::create_directories(path("toolkit"));
    fs::create_directories(path("daemon"));
    for (const char* file : {"dev/nvidiactl", "dev/nvidia0", "dev/nvidia-uvm", "dev/dri/card0", "dev/sda",
                             "home/.profile", "toolkit/libcudart.so", "daemon/control"})
      std::ofstream(path(file)) << file;
    const std::string why = in_child([&] { return become_machine_with_gpu() ? "" : strerror(errno); });
    if (!why.empty()) GTEST_SKIP() << "no file system of one's own: " << why;
  }

  bool become_machine_with_gpu() const {
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
    if (mount(path("dev").c_str(), "/dev", nullptr, MS_BIND, nullptr) != 0) return false;
    setenv("HOME", path("home").c_str(), 1);
    setenv("CUDA_PATH", path("toolkit").c_str(), 1);
    for (const char* name : {"CUDA_CACHE_PATH", "CUDA_HOME", "LD_LIBRARY_PATH"}) unsetenv(name);
    setenv("CUDA_MPS_PIPE_DIRECTORY", path("no daemon").c_str(), 1);
    return true;
  }
  // What `code` says once the machine has a GPU and this process is confined.
  std::string confined(bool gpus, const std::function<std::string()>& code, bool daemon = false) const {
    return in_child([&] {
      if (!become_machine_with_gpu()) return std::string("no machine");
      if (daemon) setenv("CUDA_MPS_PIPE_DIRECTORY", path("daemon").c_str(), 1);
      const InForce in_force = confine({.files = {{path("model")}}, .gpus = gpus});
      return in_force.no_landlock + in_force.no_filter + code();
    });
  }
};

TEST_F(SandboxOfGpus, ItsDriverIsReached) {
  EXPECT_EQ(confined(true,
                     [&] {
                       std::string said;
                       for (const char* device : {"nvidiactl", "nvidia0", "nvidia-uvm", "dri/card0"})
                         said += opening("/dev/" + std::string(device), O_RDWR) + " ";
                       said += opening(path("toolkit/libcudart.so")) + " ";
                       said += opening(path("home/.nv/ComputeCache/kernel"), O_CREAT | O_RDWR) + " ";
                       return said + opening("/proc/self/maps");
                     }),
            "ok ok ok ok ok ok ok");
}

TEST_F(SandboxOfGpus, NothingElseIs) {
  EXPECT_EQ(confined(true,
                     [&] {
                       std::string said = opening("/dev/sda") + " " + opening(path("secret")) + " ";
                       said += opening(path("home/.profile")) + " ";
                       said += opening(path("toolkit/libcudart.so"), O_RDWR) + " ";
                       said += opening(path("daemon/control")) + " ";
                       said += result_of(socket(AF_UNIX, SOCK_STREAM, 0)) + " ";
                       said += result_of(socket(AF_INET, SOCK_STREAM, 0)) + " ";
                       char name[] = "/bin/true";
                       char* const arguments[] = {name, nullptr};
                       return said + result_of(execve(name, arguments, nullptr));
                     }),
            "EACCES EACCES EACCES EACCES EACCES EPERM EPERM EPERM");
}

TEST_F(SandboxOfGpus, ADaemonThatSharesItIsReachedThroughLocalSockets) {
  EXPECT_EQ(confined(
                true,
                [&] {
                  std::string said = opening(path("daemon/control"), O_RDWR) + " ";
                  said += result_of(socket(AF_UNIX, SOCK_STREAM, 0)) + " ";
                  return said + result_of(socket(AF_INET, SOCK_STREAM, 0));
                },
                true),
            "ok ok EPERM");
}

TEST_F(SandboxOfGpus, ACommandWithoutAGpuDoesNotReachIt) {
  EXPECT_EQ(confined(false,
                     [&] {
                       return opening("/dev/nvidiactl", O_RDWR) + " " +
                              opening(path("toolkit/libcudart.so")) + " " +
                              opening(path("home/.nv/ComputeCache/kernel"), O_CREAT | O_RDWR);
                     }),
            "EACCES EACCES EACCES");
}

TEST_F(Sandbox, EveryFileIfACommandNeedsIt) {
  EXPECT_EQ(in_child([&] {
              const InForce f = confine({.why_every_file = "it plans"});
              return f.no_landlock + "; " + opening(path("secret")) + " " +
                     result_of(socket(AF_INET, SOCK_STREAM, 0));
            }),
            "it plans; ok EPERM");
}

// The filter alone, as on a kernel without Landlock.
class SandboxFilter : public Sandbox {
 protected:
  // What the code says after confinement.
  std::string confined(const std::function<std::string()>& code) const {
    return in_child([&] {
      if (!test::take_landlock_away()) return std::string("Landlock cannot be taken away");
      const InForce f = confine(needs());
      if (!f.filter) return "no filter: " + f.no_filter;
      return (f.no_landlock == "this kernel has no Landlock" ? "" : f.no_landlock) + code();
    });
  }
};

TEST_F(SandboxFilter, FilesAreOpenWithoutLandlock) {
  EXPECT_EQ(confined([&] { return opening(path("secret")); }), "ok");
}

TEST_F(SandboxFilter, NoOtherPrograms) {
  EXPECT_EQ(confined([] {
              char name[] = "true";
              char* const arguments[] = {name, nullptr};
              std::string said = result_of(execve("/bin/true", arguments, nullptr));
              said += " " + result_of(syscall(SYS_execveat, AT_FDCWD, "/bin/true", arguments, nullptr, 0));
              return said + " " + result_of(fork()) + " " + result_of(vfork()) + " " +
                     (system("true") == 0 ? "ran" : "no shell");
            }),
            "EPERM EPERM EPERM EPERM no shell");
}

TEST_F(SandboxFilter, NoNetwork) {
  EXPECT_EQ(confined([] {
              std::string said;
              for (const int family : {AF_INET, AF_INET6, AF_UNIX, AF_NETLINK, AF_PACKET})
                said += result_of(socket(family, SOCK_DGRAM, 0)) + " ";
              return said;
            }),
            "EPERM EPERM EPERM EPERM EPERM ");
}

TEST_F(SandboxFilter, NoSocketThatWasOpenBefore) {
  const int before = socket(AF_UNIX, SOCK_STREAM, 0);
  EXPECT_EQ(confined([&] {
              const sockaddr address{AF_UNIX, "/tmp/x"};
              return result_of(connect(before, &address, sizeof address)) + " " +
                     result_of(listen(before, 1));
            }),
            "EPERM EPERM");
  close(before);
}

TEST_F(SandboxFilter, NoOtherProcess) {
  EXPECT_EQ(confined([] {
              const pid_t other = getppid();
              char byte = 0;
              const iovec place{&byte, 1};
              return result_of(ptrace(PTRACE_SEIZE, other, nullptr, nullptr)) + " " +
                     result_of(syscall(SYS_process_vm_writev, other, &place, 1, &place, 1, 0)) + " " +
                     result_of(kill(other, 0)) + " " + result_of(kill(-1, 0)) + " " +
                     result_of(kill(getpid(), 0)) + " " + result_of(syscall(SYS_tgkill, other, other, 0)) +
                     " " + result_of(syscall(SYS_pidfd_open, other, 0));
            }),
            "EPERM EPERM EPERM EPERM ok EPERM EPERM");
}

TEST_F(SandboxFilter, NoDoorsIntoTheKernel) {
  EXPECT_EQ(confined([&] {
              return result_of(syscall(SYS_io_uring_setup, 1, nullptr)) + " " +
                     result_of(syscall(SYS_bpf, 0, nullptr, 0)) + " " + result_of(unshare(CLONE_NEWUSER)) +
                     " " + result_of(chmod(path("secret").c_str(), 0777)) + " " +
                     result_of(fchmodat(AT_FDCWD, path("secret").c_str(), 0777, 0)) + " " +
                     result_of(mknod(path("device").c_str(), S_IFCHR, 0)) + " " +
                     result_of(syscall(SYS_userfaultfd, 0));
            }),
            "EPERM EPERM EPERM EPERM EPERM EPERM EPERM");
}

TEST_F(SandboxFilter, NothingIsTypedIntoTheTerminal) {
  EXPECT_EQ(confined([] {
              winsize size;
              char key = 'x';
              const std::string typing = result_of(ioctl(0, TIOCSTI, &key));
              const bool asked = ioctl(0, TIOCGWINSZ, &size) == 0 || errno == ENOTTY || errno == EINVAL;
              return typing + (asked ? " ok" : " refused");
            }),
            "EPERM ok");
}

TEST_F(SandboxFilter, AnotherTableOfCallsIsNoWayOut) {
#ifdef __x86_64__
  EXPECT_EQ(confined([] { return result_of(syscall(0x40000000 | SYS_socket, AF_INET, SOCK_STREAM, 0)); }),
            "ENOSYS");
#endif
}

TEST_F(SandboxFilter, HoldsInThreadsOfBeforeAndAfter) {
  EXPECT_EQ(confined([] {
              std::string said;
              std::thread([&] { said = result_of(socket(AF_INET, SOCK_STREAM, 0)); }).join();
              return said;
            }),
            "EPERM");
  EXPECT_EQ(in_child([&] {
              int ends[2];
              if (pipe(ends) != 0) return std::string("no pipe");
              std::string said;
              std::thread before([&] {
                char byte;
                if (read(ends[0], &byte, 1) == 1) said = result_of(socket(AF_INET, SOCK_STREAM, 0));
              });
              const InForce f = confine(needs());
              const bool woken = write(ends[1], "x", 1) == 1;
              before.join();
              return (f.filter && woken ? "" : "no filter ") + said;
            }),
            "EPERM");
}

TEST_F(SandboxFilter, WhatPeopleCanAllow) {
  EXPECT_EQ(in_child([] {
              prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
              const int error = install_filter({.io_uring = true, .local_sockets = true});
              return std::to_string(error) + " " + result_of(syscall(SYS_io_uring_setup, 1, nullptr)) + " " +
                     result_of(socket(AF_UNIX, SOCK_STREAM, 0)) + " " +
                     result_of(socket(AF_INET, SOCK_STREAM, 0));
            }),
            "0 EFAULT ok EPERM");
}

// MPI reaches other machines, and its ranks share memory; what else is refused stays so.
TEST_F(SandboxFilter, MpiHasSocketsAndSharedMemory) {
  const auto tried = [](const Needs& needs) {
    return in_child([&] {
      confine(needs);
      const int fd = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof address;
      std::string said = result_of(fd);
      if (fd >= 0) {
        auto* const name = reinterpret_cast<sockaddr*>(&address);
        for (const int result : {bind(fd, name, size), listen(fd, 1), getsockname(fd, name, &size)})
          said += " " + result_of(result);
        said += " " + result_of(connect(socket(AF_INET, SOCK_STREAM, 0), name, size));
      }
      const std::string shared = "/dev/shm/tandem-test-" + std::to_string(getpid());
      said += " " + opening(shared, O_RDWR | O_CREAT);
      said += " " + result_of(unlink(shared.c_str()));
      const char byte = 0;
      iovec from{const_cast<char*>(&byte), 1}, to = from;
      said += " " + result_of(process_vm_readv(getppid(), &to, 1, &from, 1, 0));
      return said + " " + result_of(fork());
    });
  };
  Needs mpi = needs();
  mpi.mpi = true;
  EXPECT_EQ(tried(mpi), "ok ok ok ok ok ok ok EPERM EPERM");
  const std::string without = tried(needs());
  EXPECT_TRUE(without == "EPERM EACCES ENOENT EPERM EPERM" || landlock_abi() == 0) << without;
}

TEST_F(Sandbox, SaysWhatIsInForce) {
  EXPECT_EQ((InForce{.landlock_abi = 3, .filter = true}).text(),
            "sandbox: files limited (Landlock 3); no other programs, no network, no debugging (seccomp)");
  EXPECT_EQ(
      (InForce{.landlock_abi = 3, .filter = true, .mpi = true}).text(),
      "sandbox: files limited (Landlock 3); no other programs, network for MPI, no debugging (seccomp)");
  EXPECT_EQ(
      (InForce{
           .no_landlock = "this kernel has no Landlock", .no_filter = "Invalid argument", .io_uring = true})
          .text(),
      "sandbox: files not limited: this kernel has no Landlock; system calls not limited: Invalid argument; "
      "io_uring is allowed for reading layers from disk");
}

}  // namespace
}  // namespace tandem::sandbox
