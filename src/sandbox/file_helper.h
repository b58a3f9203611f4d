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

#include <map>
#include <memory>
#include <mutex>
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

class FileHelper {
 public:
  // Returns null if the system gives no process or socket. Call while the program has one thread.
  static std::shared_ptr<FileHelper> start(std::vector<OutputName> outputs);
  // Ends the process and waits for it.
  ~FileHelper();
  FileHelper(const FileHelper&) = delete;
  FileHelper& operator=(const FileHelper&) = delete;

  pid_t pid() const { return pid_; }
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
