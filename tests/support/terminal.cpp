#include "support/terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace tandem::test {
namespace {

using Clock = std::chrono::steady_clock;

int left_ms(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
  return left < 0 ? 0 : static_cast<int>(left);
}

// In the child: everything from here to exec.
[[noreturn]] void become(const std::vector<std::string>& argv, const TerminalOptions& options,
                         const char* terminal) {
  setsid();
  const int fd = open(terminal, O_RDWR);  // becomes the controlling terminal
  if (fd < 0) _exit(126);
  for (int target = 0; target < 3; ++target) dup2(fd, target);
  if (fd > 2) close(fd);
  if (!options.stdout_file.empty()) {
    const int file = open(options.stdout_file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(file, 1);
  }
  for (const std::string& variable : options.environment) {
    const size_t equals = variable.find('=');
    if (equals == variable.npos) {
      unsetenv(variable.c_str());
    } else {
      setenv(variable.substr(0, equals).c_str(), variable.c_str() + equals + 1, 1);
    }
  }
  std::vector<char*> pointers;
  for (const std::string& a : argv) pointers.push_back(const_cast<char*>(a.c_str()));
  pointers.push_back(nullptr);
  signal(SIGINT, SIG_DFL);
  execv(pointers[0], pointers.data());
  _exit(127);
}

}  // namespace

Terminal::Terminal(const std::vector<std::string>& argv, const TerminalOptions& options)
    : screen_(options.rows, options.columns) {
  master_ = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master_ < 0 || grantpt(master_) != 0 || unlockpt(master_) != 0)
    throw std::runtime_error("no pseudo-terminal");
  const std::string name = ptsname(master_);
  resize(options.rows, options.columns);
  child_ = fork();
  if (child_ == 0) become(argv, options, name.c_str());
}

Terminal::~Terminal() {
  if (child_ > 0 && !ended()) {
    kill(child_, SIGKILL);
    waitpid(child_, &status_, 0);
  }
  if (master_ >= 0) close(master_);
}

void Terminal::type(const std::string& keys) {
  for (size_t done = 0; done < keys.size();) {
    pollfd ready{master_, POLLIN | POLLOUT, 0};
    if (poll(&ready, 1, 10000) <= 0) return;
    if ((ready.revents & POLLIN) != 0) read_some(0);  // otherwise both sides would wait for each other
    if ((ready.revents & POLLOUT) == 0) continue;
    const ssize_t n = write(master_, keys.data() + done, std::min<size_t>(keys.size() - done, 512));
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

void Terminal::resize(int rows, int columns) {
  winsize size{};
  size.ws_row = static_cast<unsigned short>(rows);
  size.ws_col = static_cast<unsigned short>(columns);
  ioctl(master_, TIOCSWINSZ, &size);
  screen_.resize(rows, columns);
}

void Terminal::hang_up() {
  close(master_);
  master_ = -1;
}

bool Terminal::read_some(int timeout_ms) {
  if (master_ < 0) return false;
  pollfd ready{master_, POLLIN, 0};
  if (poll(&ready, 1, timeout_ms) <= 0) return false;
  char chunk[4096];
  const ssize_t n = read(master_, chunk, sizeof chunk);
  if (n <= 0) return false;
  unseen_.append(chunk, static_cast<size_t>(n));
  screen_.feed({chunk, static_cast<size_t>(n)});
  return true;
}

bool Terminal::wait_for(const std::string& text, int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const size_t at = unseen_.find(text);
    if (at != unseen_.npos) {
      seen_ = unseen_.substr(0, at + text.size());
      unseen_.erase(0, at + text.size());
      return true;
    }
    if (left_ms(end) == 0 || (!read_some(std::min(left_ms(end), 100)) && ended() && !read_some(0))) {
      seen_ = unseen_;
      return false;
    }
  }
}

bool Terminal::wait_for_screen(const std::function<bool(const Screen&)>& condition, int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!condition(screen_)) {
    if (left_ms(end) == 0) return false;
    if (!read_some(std::min(left_ms(end), 100)) && ended() && !read_some(0)) return condition(screen_);
  }
  return true;
}

bool Terminal::wait_for_row(const std::string& text, int timeout_ms) {
  return wait_for_screen([&](const Screen& screen) { return screen.row_with(text) >= 0; }, timeout_ms);
}

std::string Terminal::rest(int ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(10 * ms);
  while (read_some(ms) && left_ms(end) > 0) {}
  return std::exchange(unseen_, "");
}

bool Terminal::ended() {
  if (!ended_) ended_ = waitpid(child_, &status_, WNOHANG) == child_;
  return ended_;
}

int Terminal::wait_for_exit(int timeout_ms) {
  const auto end = Clock::now() + std::chrono::milliseconds(timeout_ms);
  while (!ended()) {
    if (left_ms(end) == 0) return -1;
    if (!read_some(20)) usleep(5000);
  }
  while (read_some(0)) {}
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
}

bool Terminal::echoes() const {
  termios settings{};
  return tcgetattr(master_, &settings) == 0 && (settings.c_lflag & (ECHO | ICANON)) == (ECHO | ICANON);
}

}  // namespace tandem::test
