#include "ranks/launch.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "base/error.h"

namespace tandem {
namespace {

std::optional<int> number_of(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr) return {};
  const std::string_view digits = text;
  int number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  const bool is_number = error == std::errc() && end == digits.data() + digits.size() && number >= 0;
  return is_number ? std::optional(number) : std::nullopt;
}

// The worker has ended with this status of waitpid().
int report_end(int status, const Launch& launch) {
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  fprintf(stderr, "tandem: error: rank %d on %s was ended by signal %d (%s)\n", launch.rank,
          host_name().c_str(), signal, strsignal(signal));
  return static_cast<int>(ErrorCode::io);
}

// Waits for the worker and looks now and then whether the launcher is still there.
int watch(pid_t worker, pid_t launcher, const Launch& launch) {
  prctl(PR_SET_NAME, "tandem-watch");
  signal(SIGINT, SIG_IGN);  // the worker's own matter
  sigset_t child;
  sigemptyset(&child);
  sigaddset(&child, SIGCHLD);
  sigprocmask(SIG_BLOCK, &child, nullptr);
  constexpr timespec kInterval{0, 200'000'000};
  bool launcher_gone = false;
  for (;;) {
    int status = 0;
    if (waitpid(worker, &status, WNOHANG) == worker) {
      if (!launcher_gone) return report_end(status, launch);
      fprintf(stderr, "tandem: error: rank %d on %s: what started it (mpirun, srun) has ended\n", launch.rank,
              host_name().c_str());
      return static_cast<int>(ErrorCode::io);
    }
    if (getppid() != launcher && !launcher_gone) {
      launcher_gone = true;
      kill(worker, SIGKILL);
    }
    sigtimedwait(&child, nullptr, &kInterval);
  }
}

}  // namespace

std::optional<Launch> Launch::from_environment() {
  // The first that is there: mpirun inside of a Slurm job sets its own.
  constexpr std::array<const char*, 2> kNames[] = {
      {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
      {"PMI_RANK", "PMI_SIZE"},
      {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
  };
  for (const auto& [rank_name, size_name] : kNames) {
    const auto rank = number_of(rank_name), size = number_of(size_name);
    if (rank && size && *rank < *size) return Launch{*rank, *size};
  }
  return {};
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof name - 1) != 0) return "unknown";
  return printable(std::string_view(name).substr(0, std::string_view(name).find('.')));
}

std::optional<int> watch_rank(const Launch& launch) {
  const pid_t launcher = getppid(), watcher = getpid();
  const pid_t worker = fork();
  if (worker < 0) return {};
  if (worker > 0) return watch(worker, launcher, launch);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != watcher) _exit(static_cast<int>(ErrorCode::io));  // it was killed before that
  return {};
}

}  // namespace tandem
