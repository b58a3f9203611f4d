// Runs programs with mpirun, and kills their ranks.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "support/gguf_bytes.h"

namespace tandem::test {

// Why nothing can be run with mpirun here, "" if it can.
std::string why_no_mpi();

// A job of mpirun on this machine; killed, with all its processes, by the destructor.
class MpiRun {
 public:
  using Command = std::vector<std::string>;
  // Starts so many ranks of the command, with its output in a file.
  MpiRun(int n_ranks, const Command& command);
  // One rank of each command.
  explicit MpiRun(const std::vector<Command>& commands);
  ~MpiRun();
  MpiRun(const MpiRun&) = delete;
  MpiRun& operator=(const MpiRun&) = delete;

  pid_t mpirun() const { return pid_; }
  // Processes of a rank that run the program: that which watches, and that which works (0: not there).
  pid_t watcher(int rank) const;
  pid_t worker(int rank) const;
  // Whether the worker of a rank has mapped this file: it has joined the others and begun to load.
  bool has_mapped(int rank, const std::string& path) const;

  // Waits until this is so; false if it is not within some seconds.
  static bool wait_until(const std::function<bool()>& holds,
                         std::chrono::seconds patience = std::chrono::seconds(20));
  // Waits for the end. The exit code; -1: killed by a signal, or still running after a minute.
  int wait();
  std::string output() const;
  // Processes of this job that are still there.
  std::vector<pid_t> left() const;
  // Expects that all end within five seconds, with a sentence that names the rank, and leave nothing behind.
  void expect_end(int exit_code, const std::string& sentence);

 private:
  void start(const std::vector<std::string>& arguments);

  TempDir directory_;
  std::string mark_;
  pid_t pid_ = -1;
  int status_ = 0;
  bool ended_ = false;
};

}  // namespace tandem::test

#define TANDEM_NEED_MPI() \
  if (const std::string why = ::tandem::test::why_no_mpi(); !why.empty()) GTEST_SKIP() << why
