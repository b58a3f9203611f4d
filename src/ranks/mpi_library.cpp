#include "ranks/mpi_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "base/error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFile = "libtandem_mpi.so";

fs::path library_file() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path();
  for (const fs::path& place : {folder / ".." / "lib" / "tandem" / kFile, folder / kFile}) {
    if (fs::exists(place, error)) return place;
  }
  throw_error(ErrorCode::io,
              "this tandem was built without MPI: {} is not beside {}; build it where Open MPI or MPICH is "
              "installed with "
              "its headers (package libopenmpi-dev)",
              kFile, printable(program.string(), 4096));
}

const MpiFunctions& load() {
  const fs::path file = library_file();
  // MPI's plugins need its symbols.
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    throw_error(ErrorCode::io, "the MPI library that tandem was built with is missing: {}",
                printable(dlerror(), 400));
  }
  const auto get = reinterpret_cast<GetMpiFunctions>(dlsym(library, kMpiFunctionsName));
  if (get == nullptr || get()->version != kMpiFunctionsVersion) {
    throw_error(ErrorCode::io, "{} belongs to another version of tandem", printable(file.string(), 4096));
  }
  return *get();
}

}  // namespace

const MpiFunctions& mpi_library() {
  static const MpiFunctions& functions = load();
  return functions;
}

}  // namespace tandem
