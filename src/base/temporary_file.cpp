#include "base/temporary_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace tandem {
namespace {

class LocalFile : public TemporaryFile {
 public:
  LocalFile(std::string path, std::string temporary_path)
      : path_(std::move(path)), temporary_path_(std::move(temporary_path)) {}
  ~LocalFile() override {
    if (fd_ < 0) return;
    close(fd_);
    if (named_) unlink(temporary_path_.c_str());
  }
  LocalFile(const LocalFile&) = delete;
  LocalFile& operator=(const LocalFile&) = delete;

  // Returns errno, or 0.
  int create() {
    const size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    fd_ = open(folder.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, 0666);
    if (fd_ >= 0 && access(descriptor_path().c_str(), F_OK) == 0) return 0;
    if (fd_ >= 0) close(fd_);
    fd_ = open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    named_ = fd_ >= 0;
    return named_ ? 0 : errno;
  }

  int fd() const override { return fd_; }
  bool named() const override { return named_; }

  Failure publish() override {
    if (!named_) {  // linkat cannot replace a file: link under the temporary name, then rename
      unlink(temporary_path_.c_str());
      if (linkat(AT_FDCWD, descriptor_path().c_str(), AT_FDCWD, temporary_path_.c_str(), AT_SYMLINK_FOLLOW) !=
          0)
        return {errno, Failure::In::name};
      named_ = true;
    }
    if (rename(temporary_path_.c_str(), path_.c_str()) != 0) return {errno, Failure::In::rename};
    close(fd_);
    fd_ = -1;
    return {};
  }

 private:
  // linkat() gives an unnamed file a name through this link.
  std::string descriptor_path() const { return "/proc/self/fd/" + std::to_string(fd_); }

  std::string path_, temporary_path_;
  int fd_ = -1;
  bool named_ = false;
};

std::function<CreateTemporary>& creator() {
  static std::function<CreateTemporary> create;
  return create;
}

}  // namespace

std::unique_ptr<TemporaryFile> create_temporary(const std::string& path, const std::string& temporary_path,
                                                int& error) {
  auto file = std::make_unique<LocalFile>(path, temporary_path);
  error = file->create();
  if (error != 0) return nullptr;
  return file;
}

void set_create_temporary(std::function<CreateTemporary> create) {
  creator() = std::move(create);
}

const std::function<CreateTemporary>& creator_of_temporaries() {
  return creator();
}

}  // namespace tandem
