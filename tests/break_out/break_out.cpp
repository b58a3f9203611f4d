// A library for LD_PRELOAD that plays a program taken over by a model file: as soon as the program has confined itself,
// it tries to get out, in every way that the sandbox is to close, and writes one line per attempt, "name: ok" or the
// error's name. tests/unit/break_out_test.cpp says what each must be.
//
// In a chat it also asks the helper outside of the sandbox for files that nobody typed, as well as for one whose name it
// puts into the line itself, so that the user only has to press Enter.
//
// $BREAK_OUT_REPORT is the file of these lines, opened before. $BREAK_OUT_MODEL is the model, $BREAK_OUT_SECRET a file
// that the program has no business with, $BREAK_OUT_FOLDER the folder of its outputs. $BREAK_OUT_CHAT is set for a chat at
// a terminal.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "sandbox/channel.h"

namespace {

int g_report = -1;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void report(const char* what, long result) {
  const std::string line = std::string(what) + ": " + (result >= 0 ? "ok" : strerrorname_np(errno)) + "\n";
  if (write(g_report, line.data(), line.size()) < 0) _exit(99);
}

void try_file(const char* what, const std::string& path, int flags) {
  const int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
  report(what, fd);
  if (fd >= 0) close(fd);
}

void try_files() {
  const std::string model = variable("BREAK_OUT_MODEL"), secret = variable("BREAK_OUT_SECRET"),
                    folder = variable("BREAK_OUT_FOLDER");
  try_file("read the model", model, O_RDONLY);
  try_file("read /etc/passwd", "/etc/passwd", O_RDONLY);
  try_file("read a file of the user", secret, O_RDONLY);
  try_file("read it through /proc", "/proc/self/root" + secret, O_RDONLY);
  try_file("list the home folder", secret.substr(0, secret.rfind('/')), O_RDONLY | O_DIRECTORY);
  try_file("write beside the outputs", folder + "/.profile", O_WRONLY | O_CREAT);
  try_file("write into the model", model, O_WRONLY);
  try_file("write into a file of the user", secret, O_WRONLY | O_APPEND);
  report("replace a file of the user", rename(model.c_str(), secret.c_str()));
  report("link it", link(secret.c_str(), (folder + "/link").c_str()));
  report("remove it", unlink(secret.c_str()));
  report("cut it", truncate(secret.c_str(), 0));
  report("change its mode", chmod(secret.c_str(), 0666));
  report("make a folder", mkdir((folder + "/folder").c_str(), 0700));
}

void try_programs() {
  char name[] = "/bin/true";
  char* const arguments[] = {name, nullptr};
  pid_t child = 0;
  errno = posix_spawn(&child, name, nullptr, nullptr, arguments, nullptr);
  report("start a program", errno == 0 ? 0 : -1);
  const pid_t forked = fork();
  if (forked == 0) _exit(0);
  report("start a process", forked);
  report("become a program", execve(name, arguments, nullptr));
  const int program = static_cast<int>(syscall(SYS_memfd_create, "x", 0));
  report("become a program in memory", syscall(SYS_execveat, program, "", arguments, nullptr, AT_EMPTY_PATH));
  close(program);
}

void try_processes() {
  const pid_t parent = getppid();
  report("debug the parent", ptrace(PTRACE_ATTACH, parent, nullptr, nullptr));
  report("signal the parent", kill(parent, 0));
  try_file("write the parent's memory", "/proc/" + std::to_string(parent) + "/mem", O_RDWR);
  try_file("read the parent's environment", "/proc/" + std::to_string(parent) + "/environ", O_RDONLY);
  char key = 'x';
  report("type into the terminal", ioctl(0, TIOCSTI, &key));
}

void try_network() {
  const int tcp = socket(AF_INET, SOCK_STREAM, 0);
  report("open a socket", tcp);
  report("open a local socket", socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_in loopback{};
  loopback.sin_family = AF_INET;
  loopback.sin_port = htons(9);
  loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  report("connect", connect(tcp, reinterpret_cast<sockaddr*>(&loopback), sizeof loopback));
  char parameters[256] = {};
  report("make an io_uring", syscall(SYS_io_uring_setup, 4, parameters));
}

// The questions of file_helper.cpp and typed_lines.cpp.
enum Question : uint32_t { kCreate = 0, kOpen = 3, kOpenEditor = 100, kRead = 101, kClose = 103 };

// The program's only socket.
int find_channel() {
  for (int fd = 0; fd < 100; ++fd) {
    struct stat status {};
    if (fstat(fd, &status) == 0 && S_ISSOCK(status.st_mode)) return fd;
  }
  return -1;
}

void ask(tandem::sandbox::Channel& channel, const char* what, const tandem::sandbox::Message& question) {
  tandem::sandbox::Message answer;
  const bool answered = channel.send(question) && channel.receive(answer);
  errno = answered ? static_cast<int>(answer.number) : ECHILD;
  report(what, answer.fd);
  if (answer.fd >= 0) close(answer.fd);
}

void try_helper() {
  const std::string secret = variable("BREAK_OUT_SECRET");
  tandem::sandbox::Channel channel(find_channel());
  ask(channel, "have the helper read a file", {.kind = kOpen, .text = secret});
  ask(channel, "have the helper write a file", {.kind = kCreate, .text = secret + '\0' + secret + ".tmp-1"});
  tandem::sandbox::Message line;
  channel.send({.kind = kOpenEditor});
  channel.send({.kind = kRead, .text = "/load " + secret});
  report("put a name into the line", channel.receive(line) ? 0 : -1);
  ask(channel, "have the helper read it then", {.kind = kOpen, .text = secret});
  channel.send({.kind = kRead, .text = "/save " + secret});
  channel.receive(line);
  ask(channel, "have the helper write it then", {.kind = kCreate, .text = secret + '\0' + secret + ".tmp-1"});
  channel.send({.kind = kClose});
  channel.receive(line);
  channel.release();
}

__attribute__((constructor)) void open_report() {
  g_report = open(variable("BREAK_OUT_REPORT").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const int high = fcntl(g_report, F_DUPFD_CLOEXEC, 100);  // out of the way
  if (g_report >= 0) close(g_report);
  g_report = high;
}

}  // namespace

// The program installs its filter last, and with this function.
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) noexcept {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& argument : a) argument = va_arg(list, long);
  va_end(list);
  using Function = long (*)(long, ...);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "syscall"));
  const long result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number != SYS_seccomp || g_report < 0) return result;
  const int error = errno;
  report("confine", result);
  try_files();
  try_programs();
  try_processes();
  try_network();
  if (!variable("BREAK_OUT_CHAT").empty()) try_helper();
  errno = error;
  return result;
}
