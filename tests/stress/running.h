// The program under test as a process that can be watched and killed.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "support/paths.h"

namespace tandem::test {

// What it writes to standard output and error goes nowhere.
class Running {
 public:
  explicit Running(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), binary_path());
    child_ = fork();
    if (child_ != 0) return;
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  ~Running() {
    if (child_ > 0) end();
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  pid_t id() const { return child_; }
  bool ended() {
    int status = 0;
    if (child_ > 0 && waitpid(child_, &status, WNOHANG) == child_) note(status);
    return child_ <= 0;
  }
  // Kills it if it still runs. Returns the exit code, or 128 + signal.
  int end() {
    if (!ended()) {
      kill(child_, SIGKILL);
      int status = 0;
      waitpid(child_, &status, 0);
      note(status);
    }
    return exit_code_;
  }
  int wait() {
    while (!ended()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return exit_code_;
  }

 private:
  void note(int status) {
    child_ = -1;
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t child_ = -1;
  int exit_code_ = -1;
};

}  // namespace tandem::test
