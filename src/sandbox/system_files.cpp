#include "sandbox/system_files.h"

#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tandem::sandbox {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void add_matching(std::vector<PathRule>& rules, const char* pattern, Access access) {
  glob_t found{};
  if (glob(pattern, 0, nullptr, &found) == 0) {
    for (size_t i = 0; i < found.gl_pathc; ++i) rules.push_back({found.gl_pathv[i], access});
  }
  globfree(&found);
}

void add_each(std::vector<PathRule>& rules, std::string_view folders) {
  while (!folders.empty()) {
    const size_t end = std::min(folders.find(':'), folders.size());
    if (end > 0) rules.push_back({std::string(folders.substr(0, end))});
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
}

}  // namespace

// All of /proc, because entries of procfs come and go; memory and environment of other processes stay closed, for Landlock
// forbids to look into processes outside.
std::vector<PathRule> system_files() {
  std::vector<PathRule> rules;
  for (const char* path :
       {"/usr", "/lib", "/lib64", "/nix/store", "/gnu/store", "/proc", "/sys", "/etc/ld.so.cache",
        "/etc/localtime", "/etc/timezone", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"}) {
    rules.push_back({path});
  }
  rules.push_back({"/dev/null", Access::write});
  add_each(rules, variable("LD_LIBRARY_PATH"));
  return rules;
}

bool has_gpu_driver() {
  return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

std::vector<PathRule> gpu_driver_files() {
  std::vector<PathRule> rules;
  for (const char* pattern : {"/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/dxg", "/dev/dri/*"})
    add_matching(rules, pattern, Access::device);
  for (const char* path : {"/opt", "/run/opengl-driver", "/etc/nvidia", "/etc/OpenCL"})
    rules.push_back({path});
  for (const char* name : {"CUDA_PATH", "CUDA_HOME"}) {
    if (const std::string path = variable(name); !path.empty()) rules.push_back({path});
  }
  // Kernels compiled from PTX, and memory shared with other processes.
  const std::string cache = variable("CUDA_CACHE_PATH");
  rules.push_back({cache.empty() ? variable("HOME") + "/.nv" : cache, Access::write});
  rules.push_back({"/dev/shm", Access::write});
  const std::string pipes = variable("CUDA_MPS_PIPE_DIRECTORY");
  rules.push_back({pipes.empty() ? "/tmp/nvidia-mps" : pipes, Access::write});
  return rules;
}

std::vector<PathRule> mpi_files() {
  std::vector<PathRule> rules;
  rules.push_back({"/dev/shm", Access::write});
  for (const char* name : {"OMPI_FILE_LOCATION", "PMIX_SERVER_TMPDIR", "OMPI_MCA_orte_top_session_dir"}) {
    if (const std::string path = variable(name); !path.empty()) rules.push_back({path, Access::write});
  }
  add_matching(rules, "/dev/infiniband/*", Access::device);
  return rules;
}

bool has_gpu_daemon() {
  const std::string pipes = variable("CUDA_MPS_PIPE_DIRECTORY");
  return access((pipes.empty() ? "/tmp/nvidia-mps" : pipes).c_str(), F_OK) == 0;
}

}  // namespace tandem::sandbox
