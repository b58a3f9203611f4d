// A file that has not got its final name yet: the part of OutputFile that needs the folder. A program that must not change
// folders itself (see the room sandbox) has another process do it.
#pragma once

#include <functional>
#include <memory>
#include <string>

namespace tandem {

// Owns the file, and removes it unless it was published.
class TemporaryFile {
 public:
  virtual ~TemporaryFile() = default;
  virtual int fd() const = 0;
  virtual bool named() const = 0;  // it is visible, under its temporary name

  struct Failure {
    int error = 0;  // errno, 0: none
    enum class In : int { name, rename } in = In::name;
  };
  virtual Failure publish() = 0;
};

// Creates a file that becomes `path`, unnamed where the filesystem can. Returns null, with errno in `error`, if it cannot
// be created.
std::unique_ptr<TemporaryFile> create_temporary(const std::string& path, const std::string& temporary_path,
                                                int& error);

using CreateTemporary = decltype(create_temporary);
// Sets who creates the temporary files of all OutputFiles from now on; an empty function: this process. Not thread-safe.
void set_create_temporary(std::function<CreateTemporary> create);
// What was set.
const std::function<CreateTemporary>& creator_of_temporaries();

}  // namespace tandem
