#include "stress/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <stdexcept>

#include "support/gguf_bytes.h"
#include "support/paths.h"
#include "support/text_files.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> all;
  for (std::string& s : strings) all.push_back(s.data());
  all.push_back(nullptr);
  return all;
}

// Only what the program needs: settings of the user who runs the tests must not change the counts.
std::vector<std::string> environment(const Job& job, const std::string& home, const std::string& report) {
  std::vector<std::string> all = {"HOME=" + home,           "XDG_CACHE_HOME=" + home,
                                  "XDG_STATE_HOME=" + home, "XDG_CONFIG_HOME=" + home,
                                  "LANG=C.UTF-8",           "PATH=/usr/bin:/bin"};
  all.insert(all.end(), job.environment.begin(), job.environment.end());
  if (job.failing_call.empty()) return all;
  all.push_back("LD_PRELOAD=" + library_path());
  all.push_back("TANDEM_FAILING_CALL=" + job.failing_call);
  all.push_back("TANDEM_FAILING_CALLS_REPORT=" + report);
  return all;
}

// True if the child ends in time. Leaves it to be waited for.
bool ends_in_time(pid_t child, int timeout_s) {
  pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, child, 0)), POLLIN, 0};
  if (ended.fd < 0) return true;  // the kernel is too old: wait without a limit
  int n = 0;
  do n = poll(&ended, 1, timeout_s * 1000);
  while (n < 0 && errno == EINTR);
  close(ended.fd);
  return n != 0;
}

int wait_for(pid_t child, int timeout_s) {
  const bool in_time = ends_in_time(child, timeout_s);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  if (!in_time) return kEndless;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string library_path() {
  return (fs::read_symlink("/proc/self/exe").parent_path() / "libfailing_calls.so").string();
}

Ended JobFolder::run(const Job& job, int timeout_s) const {
  fs::remove_all(path_);
  const fs::path work = fs::path(path_) / "work", home = fs::path(path_) / "home";
  fs::create_directories(work);
  fs::create_directories(home);
  for (const auto& [name, text] : job.files) {
    fs::create_directories((work / name).parent_path());
    write_file((work / name).string(), text);
  }
  const std::string in = path_ + "/in", out = path_ + "/out", err = path_ + "/err",
                    report = path_ + "/report";
  write_file(in, job.input);
  write_file(report, std::string(sizeof(CallReport), '\0'));

  std::vector<std::string> argv = {binary_path()}, variables = environment(job, home.string(), report);
  argv.insert(argv.end(), job.arguments.begin(), job.arguments.end());
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, in.c_str(), O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_addchdir_np(&actions, work.c_str());
  pid_t child = 0;
  const int error = posix_spawn(&child, argv[0].c_str(), &actions, nullptr, pointers(argv).data(),
                                pointers(variables).data());
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " + argv[0] + ": " + strerror(error));

  Ended ended;
  ended.exit_code = wait_for(child, timeout_s);
  ended.out = file_bytes(out);
  ended.err = file_bytes(err);
  for (const auto& entry : fs::recursive_directory_iterator(work)) {
    if (entry.is_regular_file())
      ended.files[entry.path().lexically_relative(work).string()] = file_bytes(entry.path());
  }
  const std::string counted = file_bytes(report);
  if (counted.size() == sizeof ended.calls) std::memcpy(&ended.calls, counted.data(), sizeof ended.calls);
  return ended;
}

std::string command_line(const Job& job) {
  std::string line;
  for (const std::string& variable : job.environment) line += variable + " ";
  line += "LD_PRELOAD=" + library_path() + " TANDEM_FAILING_CALL=" + job.failing_call + " " + binary_path();
  for (const std::string& argument : job.arguments) line += " '" + argument + "'";
  return line;
}

}  // namespace tandem::test
