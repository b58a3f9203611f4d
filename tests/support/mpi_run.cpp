#include "support/mpi_run.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "support/process.h"

namespace tandem::test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string output_of(const char* command) {
  std::string text;
  FILE* pipe = popen(command, "r");
  char chunk[256];
  while (const size_t n = fread(chunk, 1, sizeof chunk, pipe)) text.append(chunk, n);
  pclose(pipe);
  return text;
}

bool is_open_mpi() {
  return output_of("mpirun --version 2>/dev/null").find("Open MPI") != std::string::npos;
}

// Whether the process was started with this variable. Those that have ended, but were not waited for, have none.
bool has_variable(pid_t pid, const std::string& variable) {
  const std::string all = '\0' + contents("/proc/" + std::to_string(pid) + "/environ");
  return all.find('\0' + variable + '\0') != std::string::npos;
}

pid_t parent_of(pid_t pid) {
  const std::string stat = contents("/proc/" + std::to_string(pid) + "/stat");
  const size_t name_end = stat.rfind(')');
  return name_end == stat.npos ? 0 : std::atoi(stat.c_str() + name_end + 4);
}

std::vector<pid_t> processes_with(const std::string& variable) {
  std::vector<pid_t> found;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid > 0 && has_variable(pid, variable)) found.push_back(pid);
  }
  return found;
}

}  // namespace

std::string why_no_mpi() {
  static const std::string why = [] {
    if (output_of("command -v mpirun").empty()) return "mpirun is not installed (package openmpi-bin)";
    const fs::path binary = binary_path();
    if (binary.empty() || !fs::exists(binary.parent_path() / "../lib/tandem/libtandem_mpi.so"))
      return "tandem is built without MPI (package libopenmpi-dev; not with sanitizers)";
    return "";
  }();
  return why;
}

MpiRun::MpiRun(int n_ranks, const Command& command) {
  std::vector<std::string> arguments = {"-np", std::to_string(n_ranks)};
  arguments.insert(arguments.end(), command.begin(), command.end());
  start(arguments);
}

MpiRun::MpiRun(const std::vector<Command>& commands) {
  std::vector<std::string> arguments;
  for (const Command& command : commands) {
    if (!arguments.empty()) arguments.push_back(":");
    arguments.insert(arguments.end(), {"-np", "1"});
    arguments.insert(arguments.end(), command.begin(), command.end());
  }
  start(arguments);
}

void MpiRun::start(const std::vector<std::string>& arguments) {
  mark_ = "TANDEM_TEST_JOB=" + directory_.path("job");
  std::vector<std::string> all = {"mpirun"};
  if (is_open_mpi()) all.insert(all.end(), {"--allow-run-as-root", "--oversubscribe"});
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const std::string out = directory_.path("output");
  pid_ = fork();
  if (pid_ != 0) return;
  const int file = open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600),
            nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, 0);
  dup2(file, 1);
  dup2(file, 2);
  putenv(mark_.data());
  execvp(argv[0], argv.data());
  _exit(127);
}

MpiRun::~MpiRun() {
  for (const pid_t pid : left()) kill(pid, SIGKILL);
  if (!ended_) waitpid(pid_, nullptr, 0);
}

pid_t MpiRun::watcher(int rank) const {
  const std::string variable = "OMPI_COMM_WORLD_RANK=" + std::to_string(rank);
  for (const pid_t pid : left()) {
    if (parent_of(pid) == pid_ && has_variable(pid, variable)) return pid;
  }
  return 0;
}

pid_t MpiRun::worker(int rank) const {
  const pid_t watcher_pid = watcher(rank);
  if (watcher_pid == 0) return 0;
  for (const pid_t pid : left()) {
    if (parent_of(pid) == watcher_pid) return pid;
  }
  return 0;
}

bool MpiRun::has_mapped(int rank, const std::string& path) const {
  const pid_t pid = worker(rank);
  const std::string file = fs::canonical(path);
  return pid != 0 && contents("/proc/" + std::to_string(pid) + "/maps").find(file) != std::string::npos;
}

bool MpiRun::wait_until(const std::function<bool()>& holds, std::chrono::seconds patience) {
  const auto end = std::chrono::steady_clock::now() + patience;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

int MpiRun::wait() {
  if (!ended_) ended_ = wait_until([&] { return waitpid(pid_, &status_, WNOHANG) == pid_; }, 60s);
  return ended_ && WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

std::string MpiRun::output() const {
  return contents(directory_.path("output"));
}

std::vector<pid_t> MpiRun::left() const {
  return processes_with(mark_);
}

void MpiRun::expect_end(int exit_code, const std::string& sentence) {
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_EQ(wait(), exit_code) << output();
  EXPECT_TRUE(wait_until([&] { return left().empty(); }, 5s));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 5s);
  EXPECT_THAT(output(), testing::HasSubstr(sentence));
  EXPECT_THAT(output(), testing::Not(testing::HasSubstr("has not answered")));
}

}  // namespace tandem::test
