// The program's own process: a closed or full stdout, and Ctrl-C.
#include "tools/output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <functional>
#include <string>

#include "base/interrupt.h"

namespace tandem::tools {
namespace {

struct Pipe {
  Pipe() { EXPECT_EQ(pipe(ends), 0); }
  ~Pipe() {
    close_read();
    close(ends[1]);
  }
  void close_read() {
    if (ends[0] >= 0) close(ends[0]);
    ends[0] = -1;
  }
  std::string read_now() {
    char text[256];
    const ssize_t n = read(ends[0], text, sizeof text);
    return std::string(text, n > 0 ? static_cast<size_t>(n) : 0);
  }
  int ends[2];
};

// Runs `child` in a separate process; returns its exit code, or 128 + the signal that ended it.
int exit_code_of(const std::function<void()>& child) {
  const pid_t pid = fork();
  if (pid == 0) {
    child();
    _exit(99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Output, WritesWhenFlushed) {
  Pipe pipe;
  Output out(pipe.ends[1]);
  out.write("one ");
  out.write("two");
  fcntl(pipe.ends[0], F_SETFL, O_NONBLOCK);
  EXPECT_EQ(pipe.read_now(), "");
  out.flush();
  EXPECT_EQ(pipe.read_now(), "one two");
  {
    Output last(pipe.ends[1]);
    last.write("left");
  }
  EXPECT_EQ(pipe.read_now(), "left");
}

TEST(Output, ManyBytesArriveWhole) {
  Pipe pipe;
  constexpr size_t kBytes = 1000000;
  const pid_t writer = fork();
  if (writer == 0) {
    fcntl(pipe.ends[1], F_SETFL, O_NONBLOCK);  // the pipe fills up: the writer has to wait
    Output out(pipe.ends[1]);
    for (size_t i = 0; i < kBytes; ++i) out.write(std::string(1, static_cast<char>('a' + i % 26)));
    out.flush();
    _exit(0);
  }
  close(pipe.ends[1]);
  pipe.ends[1] = -1;
  size_t n_read = 0;
  bool same = true;
  for (std::string text = pipe.read_now(); !text.empty(); text = pipe.read_now()) {
    for (const char c : text) same = same && c == static_cast<char>('a' + n_read++ % 26);
  }
  EXPECT_EQ(n_read, kBytes);
  EXPECT_TRUE(same);
  int status = 0;
  waitpid(writer, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(Output, AClosedPipeIsAQuietError) {
  Pipe pipe;
  pipe.close_read();
  const auto before = signal(SIGPIPE, SIG_IGN);
  Output out(pipe.ends[1]);
  out.write("lost");
  EXPECT_THROW(out.flush(), ClosedPipe);
  EXPECT_NO_THROW(out.flush()) << "what was lost is not tried again";
  signal(SIGPIPE, before);
}

TEST(Output, AFullDiskIsAnError) {
  const int full = open("/dev/full", O_WRONLY);
  if (full < 0) GTEST_SKIP() << "needs /dev/full";
  Output out(full);
  out.write("lost");
  try {
    out.flush();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const ClosedPipe&) {
    ADD_FAILURE() << "not a closed pipe";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::io);
  }
  close(full);
}

TEST(Interrupt, TheFirstCtrlCSetsAFlag) {
  EXPECT_EQ(exit_code_of([] {
              install_interrupt_handler();
              install_interrupt_handler();
              if (interrupted()) _exit(1);
              raise(SIGINT);
              if (!interrupted()) _exit(2);
              clear_interrupt();
              if (interrupted()) _exit(3);
              raise(SIGINT);
              _exit(interrupted() ? 0 : 4);
            }),
            0);
}

TEST(Interrupt, TheSecondCtrlCExitsAtOnce) {
  EXPECT_EQ(exit_code_of([] {
              install_interrupt_handler();
              raise(SIGINT);
              raise(SIGINT);
            }),
            130);
}

// The output on a terminal after the second Ctrl-C.
std::string shown_at_second_interrupt(const char* no_color, const char* term = "xterm") {
  int master = -1, terminal = -1;
  if (openpty(&master, &terminal, nullptr, nullptr, nullptr) != 0) return "no terminal";
  EXPECT_EQ(exit_code_of([&] {
              setenv("NO_COLOR", no_color, 1);
              setenv("TERM", term, 1);
              dup2(terminal, STDOUT_FILENO);
              install_interrupt_handler();
              raise(SIGINT);
              raise(SIGINT);
            }),
            130);
  close(terminal);  // otherwise the read would never end
  std::array<char, 64> seen{};
  const ssize_t n = read(master, seen.data(), seen.size());
  close(master);
  return {seen.data(), static_cast<size_t>(std::max<ssize_t>(0, n))};
}

TEST(Interrupt, TheSecondCtrlCResetsColors) {
  struct sigaction now {};
  sigaction(SIGINT, nullptr, &now);
  if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN) {
    GTEST_SKIP() << "a test before this one has installed the handler, for the terminal that was there then";
  }
  EXPECT_EQ(shown_at_second_interrupt(""), "\033[0m\r\n");
  EXPECT_EQ(shown_at_second_interrupt("1"), "\r\n");
  EXPECT_EQ(shown_at_second_interrupt("", "dumb"), "\r\n");
}

TEST(Interrupt, WithoutTheHandlerCtrlCEndsTheProcess) {
  EXPECT_EQ(exit_code_of([] {
              signal(SIGINT, SIG_DFL);  // the parent process may ignore SIGINT
              raise(SIGINT);
            }),
            128 + SIGINT);
}

}  // namespace
}  // namespace tandem::tools
