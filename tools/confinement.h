// What a command still needs of the system once its options are read. From then on it is confined (see the room sandbox),
// so that a file from a stranger can do nothing but be read.
//
// A command collects its files here and calls begin() after downloads, and before it reads the model and starts threads.
// Files that are open already stay usable: the log, standard input and output, answers of tandem batch. Everything that
// OutputFile writes goes through a helper process, which knows the names given here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sandbox/file_helper.h"
#include "sandbox/sandbox.h"
#include "tools/options/options.h"

namespace tandem::tools {

// --no-sandbox
void add_sandbox_option(CLI::App& app, bool& sandbox);

class Confinement {
 public:
  // `wanted` is the option.
  explicit Confinement(bool wanted) : wanted_(wanted) {}
  // Lets outputs be written without the helper again.
  ~Confinement();
  Confinement(const Confinement&) = delete;
  Confinement& operator=(const Confinement&) = delete;

  // Each ignores "" and "-".
  Confinement& reads(const std::string& file);
  // A GGUF file with its further parts.
  Confinement& reads_model(const std::string& path);
  // The same of a model that may be downloaded only in part.
  Confinement& reads_header(const ModelHeader& model);
  // A folder, and what links in it point to (the hub's cache is links).
  Confinement& reads_folder(const std::string& folder);
  // This file, which may be read too.
  Confinement& writes(const std::string& file);
  // This GGUF file or its parts.
  Confinement& writes_parts(const std::string& file);
  // All files of this folder, which may be made and removed too.
  Confinement& changes_folder(const std::string& folder);
  // Files called like this, with a number at the end.
  Confinement& writes_copies(const std::string& start);
  // The model and the devices of these options; where there are several places for the model, measures() too.
  Confinement& runs(const EngineOptions& options);
  // The file with measured speeds.
  Confinement& measures();
  // Has the helper do this too; it is then started in any case.
  Confinement& helped_by(sandbox::HelperWork work);
  // Lets MPI, which has started, reach the other ranks: sockets and shared memory.
  Confinement& uses_mpi();
  // Of files nothing is limited, for this reason.
  Confinement& every_file(const std::string& why);

  // Confines the program, unless the user does not want it, and says with -v what is in force.
  void begin();
  // Null if the program is not confined, or writes no files.
  std::shared_ptr<sandbox::FileHelper> helper() const { return helper_; }

 private:
  void add_rates_file();

  bool wanted_;
  bool measures_ = false;
  sandbox::Needs needs_;
  std::vector<sandbox::OutputName> outputs_;
  EngineOptions const* engine_ = nullptr;
  sandbox::HelperWork work_;
  std::shared_ptr<sandbox::FileHelper> helper_;
};

}  // namespace tandem::tools
