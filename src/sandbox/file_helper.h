// FileHelper: a process outside of the sandbox that writes files for the program inside.
//
// It is forked before the program confines itself, and creates, names and removes the files that were named then, and no
// others. The program gets descriptors of files without a name; so it needs no right to change any folder, and cannot
// touch what lies beside its outputs. When the program ends, in whatever way, the helper removes what was not published
// and ends too.
//
// One per process. Threads may write at the same time.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/temporary_file.h"
#include "sandbox/channel.h"

namespace tandem::sandbox {

// A file that may be written: this one, or with `numbered` those that have only digits and "-of-" between the two parts
// of the name (model-00001-of-00003.gguf, matrix.gguf.at_7).
struct OutputName {
  std::string path;
  bool numbered = false;
  std::string end;  // of the name, if numbered

  bool allows(const std::string& name) const;
};

// The files that the helper opens and writes.
class HelperFiles {
 public:
  explicit HelperFiles(std::vector<OutputName> outputs) : outputs_(std::move(outputs)) {}
  void allow_writing(OutputName output) { outputs_.push_back(std::move(output)); }
  // With the further parts of a split model.
  void allow_reading(std::string path) { inputs_.insert(std::move(path)); }
  bool may_write(const std::string& path) const;
  bool may_read(const std::string& path) const;  // outputs too

 private:
  std::vector<OutputName> outputs_;
  std::set<std::string> inputs_;
};

// What a program has its helper do besides.
class HelperHandler {
 public:
  virtual ~HelperHandler() = default;
  // Called first.
  virtual void start() = 0;
  // Handles a message of the program's own kinds. Returns false when the program has gone.
  virtual bool answer(const Message& question, HelperFiles& files) = 0;
};
inline constexpr uint32_t kFirstOwnKind = 100;
// Makes the handler, in the helper's process; such a helper keeps the terminal.
using HelperWork = std::function<std::unique_ptr<HelperHandler>(Channel& channel)>;

class FileHelper {
 public:
  // Returns null if the system gives no process or socket. Call while the program has one thread.
  static std::shared_ptr<FileHelper> start(std::vector<OutputName> outputs, HelperWork work = {});
  // Ends the process and waits for it.
  ~FileHelper();
  FileHelper(const FileHelper&) = delete;
  FileHelper& operator=(const FileHelper&) = delete;

  pid_t pid() const { return pid_; }
  // For messages of the program's own kinds, while no file is opened or written.
  Channel& channel() { return channel_; }
  // Opens one of the outputs for reading, as it is now. Returns a descriptor, or -1 and errno.
  int open(const std::string& path, int flags);
  // As tandem::create_temporary().
  std::unique_ptr<TemporaryFile> create(const std::string& path, const std::string& temporary_path,
                                        int& error);

 private:
  class RemoteFile;
  FileHelper(pid_t pid, Channel channel) : pid_(pid), channel_(std::move(channel)) {}
  // Sends and waits for the answer; false if the helper has gone.
  bool ask(const Message& question, Message& answer);

  pid_t pid_;
  Channel channel_;
  std::mutex mutex_;
};

}  // namespace tandem::sandbox
