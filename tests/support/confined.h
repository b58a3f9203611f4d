// Runs code in a process of its own, which may confine itself, and returns what it says.
#pragma once

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <functional>
#include <string>

namespace tandem::test {

// What `code` returns in a child process; "killed by N" or "exit N" if it does not return.
inline std::string in_child(const std::function<std::string()>& code) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    const std::string text = code();
    const bool all = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    _exit(all ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char chunk[4096];
  for (ssize_t n; (n = read(ends[0], chunk, sizeof chunk)) > 0;) text.append(chunk, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (WIFSIGNALED(status)) return text + "killed by " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) != 0) return text + "exit " + std::to_string(WEXITSTATUS(status));
  return text;
}

// Makes this process one on a kernel without Landlock: its system calls do not exist. Holds for programs that it starts.
inline bool take_landlock_away() {
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JGE | BPF_K, 0, 2, 444},
      {BPF_JMP | BPF_JGT | BPF_K, 1, 0, 446},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | 38},  // ENOSYS
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
  };
  sock_fprog program{std::size(code), code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace tandem::test
