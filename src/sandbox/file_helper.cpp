#include "sandbox/file_helper.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string_view>

namespace tandem::sandbox {
namespace {

// Questions.
enum Kind : uint32_t {
  kCreate,  // text: path, '\0', temporary path; answer: the descriptor, number: which, kind: 1 if it is named; without
            // a descriptor, errno
  kPublish,  // number: which; answer: errno, kind: the step that failed
  kRemove,   // number: which; no answer
  kOpen,     // text: path, number: flags; answer: the descriptor, or without one errno
};

// The process outside.
class Server {
 public:
  Server(Channel channel, std::vector<OutputName> outputs, const HelperWork& work)
      : channel_(std::move(channel)), names_(std::move(outputs)), handler_(work ? work(channel_) : nullptr) {
    if (handler_) handler_->start();
  }

  void serve() {
    for (Message question; channel_.receive(question);) {
      if (question.fd >= 0) close(question.fd);  // nobody sends one
      if (question.kind >= kFirstOwnKind && (!handler_ || !handler_->answer(question, names_))) return;
      if (question.kind == kCreate && !create(question)) return;
      if (question.kind == kPublish && !publish(question.number)) return;
      if (question.kind == kRemove) files_.erase(question.number);
      if (question.kind == kOpen && !open_one(question)) return;
    }
  }

 private:
  bool create(const Message& question) {
    const size_t end = question.text.find('\0');
    const std::string path = question.text.substr(0, end);
    const std::string temporary_path = end == std::string::npos ? "" : question.text.substr(end + 1);
    int error = EACCES;
    std::unique_ptr<TemporaryFile> file;
    if (allowed(path, temporary_path)) file = create_temporary(path, temporary_path, error);
    if (!file) return channel_.send({.number = error});
    const Message answer{.kind = file->named() ? 1u : 0u, .number = n_files_, .fd = file->fd()};
    files_[n_files_++] = std::move(file);
    return channel_.send(answer);
  }

  bool open_one(const Message& question) {
    int fd = -1;
    errno = EACCES;
    if (names_.may_read(question.text)) {
      const auto flags = static_cast<int>(question.number) & (O_NONBLOCK | O_DIRECT);
      fd = ::open(question.text.c_str(), O_RDONLY | O_CLOEXEC | flags);
    }
    const bool sent = channel_.send({.number = errno, .fd = fd});
    if (fd >= 0) close(fd);
    return sent;
  }

  // The temporary lies beside the file and is called like it.
  bool allowed(const std::string& path, const std::string& temporary_path) const {
    if (!temporary_path.starts_with(path + ".tmp-") ||
        temporary_path.find('/', path.size()) != std::string::npos)
      return false;
    return names_.may_write(path);
  }

  bool publish(int64_t which) {
    const auto file = files_.find(which);
    if (file == files_.end()) return channel_.send({.number = EBADF});
    const TemporaryFile::Failure failure = file->second->publish();
    if (failure.error == 0) files_.erase(file);
    return channel_.send({.kind = static_cast<uint32_t>(failure.in), .number = failure.error});
  }

  Channel channel_;
  HelperFiles names_;
  std::map<int64_t, std::unique_ptr<TemporaryFile>> files_;
  int64_t n_files_ = 0;
  std::unique_ptr<HelperHandler> handler_;
};

// Keeps nothing that the program opened: whoever reads its output must see its end when the program ends.
int close_all_but(int keep, bool terminal) {
  constexpr int kKept = 3;
  for (int standard = 0; standard <= 2 && !terminal; ++standard) {
    const int null = open("/dev/null", O_RDWR);
    dup2(null, standard);
    if (null > 2) close(null);
  }
  if (keep != kKept) dup2(keep, kKept);
#ifdef SYS_close_range
  if (syscall(SYS_close_range, kKept + 1, ~0u, 0) == 0) return kKept;
#endif
  for (long fd = sysconf(_SC_OPEN_MAX); fd > kKept; --fd) close(static_cast<int>(fd));
  return kKept;
}

[[noreturn]] void serve(Channel channel, std::vector<OutputName> outputs, const HelperWork& work) {
  // What ends or stops the program is not for the helper, which sees the program end.
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGTTOU, SIGTTIN, SIGPIPE})
    ::signal(signal, SIG_IGN);
  prctl(PR_SET_NAME, "tandem-files");
  prctl(PR_SET_DUMPABLE, 0);  // no other process of this user looks into it
  {
    Server(Channel(close_all_but(channel.release(), static_cast<bool>(work))), std::move(outputs), work)
        .serve();
  }
  _exit(0);
}

}  // namespace

bool OutputName::allows(const std::string& name) const {
  if (!numbered) return name == path;
  if (name.size() < path.size() + end.size() || !name.starts_with(path) || !name.ends_with(end)) return false;
  const std::string middle = name.substr(path.size(), name.size() - path.size() - end.size());
  return middle.find_first_not_of("0123456789-of") == std::string::npos;
}

bool HelperFiles::may_write(const std::string& path) const {
  return std::any_of(outputs_.begin(), outputs_.end(),
                     [&](const OutputName& output) { return output.allows(path); });
}

bool HelperFiles::may_read(const std::string& path) const {
  constexpr std::string_view kFirstPart = "-00001-of-", kEnd = ".gguf";
  return may_write(path) || std::any_of(inputs_.begin(), inputs_.end(), [&](const std::string& input) {
           const size_t at = input.rfind(kFirstPart);
           if (path == input || at == std::string::npos || !input.ends_with(kEnd)) return path == input;
           return OutputName{input.substr(0, at + 1), true, std::string(kEnd)}.allows(path);
         });
}

// A file of the helper, and our descriptor of it.
class FileHelper::RemoteFile : public TemporaryFile {
 public:
  RemoteFile(FileHelper& helper, int64_t which, int fd, bool named)
      : helper_(helper), which_(which), fd_(fd), named_(named) {}
  ~RemoteFile() override {
    close(fd_);
    const std::lock_guard lock(helper_.mutex_);
    helper_.channel_.send({.kind = kRemove, .number = which_});
  }
  int fd() const override { return fd_; }
  bool named() const override { return named_; }
  Failure publish() override {
    Message answer;
    if (!helper_.ask({.kind = kPublish, .number = which_}, answer)) return {ECHILD, Failure::In::name};
    const auto in = static_cast<Failure::In>(answer.kind);
    if (in == Failure::In::rename) named_ = true;
    return {static_cast<int>(answer.number), in};
  }

 private:
  FileHelper& helper_;
  int64_t which_;
  int fd_;
  bool named_;
};

std::shared_ptr<FileHelper> FileHelper::start(std::vector<OutputName> outputs, HelperWork work) {
  auto ends = Channel::make_pair();
  if (!ends) return nullptr;
  fflush(nullptr);  // or both would write what is buffered
  const pid_t pid = fork();
  if (pid < 0) return nullptr;
  if (pid == 0) {
    close(ends->first.release());
    serve(std::move(ends->second), std::move(outputs), work);
  }
  return std::shared_ptr<FileHelper>(new FileHelper(pid, std::move(ends->first)));
}

FileHelper::~FileHelper() {
  close(channel_.release());
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

bool FileHelper::ask(const Message& question, Message& answer) {
  const std::lock_guard lock(mutex_);
  return channel_.send(question) && channel_.receive(answer);
}

int FileHelper::open(const std::string& path, int flags) {
  Message answer;
  if (!ask({.kind = kOpen, .number = flags, .text = path}, answer)) answer.number = ECHILD;
  if (answer.fd < 0) errno = static_cast<int>(answer.number);
  return answer.fd;
}

std::unique_ptr<TemporaryFile> FileHelper::create(const std::string& path, const std::string& temporary_path,
                                                  int& error) {
  Message answer;
  error = ECHILD;
  if (!ask({.kind = kCreate, .text = path + '\0' + temporary_path}, answer)) return nullptr;
  if (answer.fd < 0) {
    error = static_cast<int>(answer.number);
    return nullptr;
  }
  error = 0;
  return std::make_unique<RemoteFile>(*this, answer.number, answer.fd, answer.kind == 1);
}

}  // namespace tandem::sandbox
