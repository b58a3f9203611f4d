#include "tools/confinement.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/open_file.h"
#include "plan/rates_cache.h"
#include "sandbox/system_files.h"
#include "setup/backends.h"
#include "setup/setup.h"
#include "tools/options/command_line.h"

namespace tandem::tools {
namespace fs = std::filesystem;

namespace {

constexpr std::string_view kModelSuffix = ".gguf";
constexpr size_t kPartSuffix = std::string_view("-00001-of-00001.gguf").size();

bool is_file_name(const std::string& name) {
  return !name.empty() && name != "-";
}

// Of a split model: "model" for "model-00001-of-00003.gguf", "" for other names.
std::string stem_of_parts(const std::string& path) {
  if (path.size() <= kPartSuffix || !path.ends_with(kModelSuffix)) return "";
  const std::string end = path.substr(path.size() - kPartSuffix);
  const bool is_part = end[0] == '-' && end.substr(6, 4) == "-of-" &&
                       end.substr(1, 5).find_first_not_of("0123456789") == end.npos &&
                       end.substr(10, 5).find_first_not_of("0123456789") == end.npos;
  return is_part ? path.substr(0, path.size() - kPartSuffix) : "";
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

uint64_t size_of(const std::string& path) {
  std::error_code error;
  const auto n = fs::file_size(path, error);
  return error ? 0 : n;
}

}  // namespace

void add_sandbox_option(CLI::App& app, bool& sandbox) {
  flag(app, "--sandbox,!--no-sandbox", sandbox,
       "keep only the access to files that this command needs, and neither network nor other programs "
       "(default: on)")
      .group("Safety");
}

Confinement::~Confinement() {
  if (!helper_) return;
  set_create_temporary({});
  set_open_elsewhere({});
}

Confinement& Confinement::reads(const std::string& file) {
  if (is_file_name(file)) needs_.files.push_back({file});
  return *this;
}

// A rule keeps a descriptor open, so a model of very many parts is allowed by its folders.
Confinement& Confinement::reads_model(const std::string& path) {
  constexpr uint64_t kMaxRules = 64;
  reads(path);
  const std::string stem = stem_of_parts(path);
  if (stem.empty()) return *this;
  const std::string count = path.substr(path.size() - kPartSuffix + 10, 5);
  const uint64_t n_parts = std::stoul(count);
  std::set<std::string> folders;
  for (uint64_t part = 1; part <= n_parts; ++part) {
    const std::string file = stem + format("-{:05}-of-", part) + count + std::string(kModelSuffix);
    std::error_code error;
    const fs::path target = fs::canonical(file, error);
    if (error) continue;
    if (n_parts <= kMaxRules) {
      reads(file);
    } else {
      folders.insert(target.parent_path());
    }
  }
  for (const std::string& folder : folders) reads(folder);
  return *this;
}

Confinement& Confinement::reads_header(const ModelHeader& model) {
  if (model.temporary) every_file("the header is in a temporary folder, which has to be removed");
  return reads_model(model.path);
}

Confinement& Confinement::reads_folder(const std::string& folder) {
  reads(folder);
  std::set<std::string> targets;
  std::vector<std::string> files;
  try {
    files = files_in(folder);
  } catch (const Error&) {  // the command says what is wrong with it
  }
  for (const std::string& file : files) {
    std::error_code ignored;
    if (!fs::is_symlink(file, ignored)) continue;
    const fs::path target = fs::canonical(file, ignored);
    if (!ignored) targets.insert(target.parent_path());
  }
  for (const std::string& target : targets) reads(target);
  return *this;
}

Confinement& Confinement::writes(const std::string& file) {
  if (!is_file_name(file)) return *this;
  outputs_.push_back({file, false, ""});
  return reads(file);
}

Confinement& Confinement::writes_parts(const std::string& file) {
  if (!is_file_name(file)) return *this;
  const bool has_suffix = file.ends_with(kModelSuffix);
  outputs_.push_back({file.substr(0, file.size() - (has_suffix ? kModelSuffix.size() : 0)), true,
                      std::string(kModelSuffix)});
  return writes(file);
}

Confinement& Confinement::changes_folder(const std::string& folder) {
  needs_.files.push_back({folder, sandbox::Access::write});
  return *this;
}

Confinement& Confinement::writes_copies(const std::string& start) {
  outputs_.push_back({start, true, ""});
  return *this;
}

Confinement& Confinement::runs(const EngineOptions& options) {
  engine_ = &options;
  needs_.gpus = !options.devices.no_gpus;
  const bool on_disk = options.offload.disk == Toggle::on ||
                       (options.offload.disk == Toggle::automatic &&
                        size_of(options.model.path) > most_to_read_ahead(options.offload));
  const std::string& spill = options.context.kv_spill;
  needs_.io_uring = on_disk || !stem_of_parts(options.model.path).empty() || !spill.empty();
  if (!spill.empty()) changes_folder(spill);
  return reads_model(options.model.path);
}

Confinement& Confinement::measures() {
  measures_ = true;
  return *this;
}

Confinement& Confinement::helped_by(sandbox::HelperWork work) {
  work_ = std::move(work);
  return *this;
}

Confinement& Confinement::uses_mpi() {
  needs_.mpi = true;
  return *this;
}

Confinement& Confinement::every_file(const std::string& why) {
  needs_.why_every_file = why;
  return *this;
}

// It is made now, because a rule is for a file that is there.
void Confinement::add_rates_file() {
  const std::string path = RatesCache::usual_path();
  if (path.empty()) return;
  std::error_code ignored;
  fs::create_directories(folder_of(path), ignored);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) return;
  close(file);
  needs_.files.push_back({path, sandbox::Access::write});
}

void Confinement::begin() {
  if (!wanted_) return log_verbose("sandbox: switched off");
  if (const std::string why = sandbox::why_never_confined(); !why.empty()) {
    return log_verbose("sandbox: not in force: {}", why);
  }
  if ((!outputs_.empty() || work_) && needs_.why_every_file.empty()) {
    helper_ = sandbox::FileHelper::start(outputs_, work_);
    if (helper_) {
      set_create_temporary([helper = helper_](const std::string& path, const std::string& temporary,
                                              int& error) { return helper->create(path, temporary, error); });
      set_open_elsewhere(
          [helper = helper_](const std::string& path, int flags) { return helper->open(path, flags); });
    } else {
      if (work_) every_file("the system gives no process to open them");
      for (const sandbox::OutputName& output : outputs_)
        needs_.files.push_back({folder_of(output.path), sandbox::Access::write});
    }
  }
  const bool gpus = needs_.gpus && sandbox::has_gpu_driver();
  if (measures_ || (engine_ != nullptr && (gpus || needs_.io_uring))) add_rates_file();
  // The driver starts threads and programs of its own when it is first asked.
  if (gpus && engine_ != nullptr) (void)backends(engine_->devices).find_gpus();
  log_verbose("{}", sandbox::confine(needs_).text());
}

}  // namespace tandem::tools
