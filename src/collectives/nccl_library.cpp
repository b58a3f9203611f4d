#include "collectives/nccl_library.h"

#include <dlfcn.h>

#include <filesystem>

#include "base/error.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr const char* kNcclFile = "libtandem_nccl.so";

fs::path nccl_file() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const fs::path folder = program.parent_path();
  for (const fs::path& place : {folder / ".." / "lib" / "tandem" / kNcclFile, folder / kNcclFile}) {
    if (fs::exists(place, error)) return place;
  }
  throw_error(
      ErrorCode::io,
      "this tandem was built without NCCL: {} is not beside {}; build it where NCCL is installed with its "
      "headers (package libnccl-dev)",
      kNcclFile, printable(program.string(), 4096));
}

const NcclFunctions& load_nccl() {
  const fs::path file = nccl_file();
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw_error(ErrorCode::io, "the NCCL library that tandem was built with is missing: {}",
                printable(dlerror(), 400));
  }
  const auto get = reinterpret_cast<GetNcclFunctions>(dlsym(library, kNcclFunctionsName));
  if (get == nullptr || get()->version != kNcclFunctionsVersion) {
    throw_error(ErrorCode::io, "{} belongs to another version of tandem", printable(file.string(), 4096));
  }
  return *get();
}

}  // namespace

const NcclFunctions& nccl_library() {
  static const NcclFunctions& functions = load_nccl();
  return functions;
}

}  // namespace tandem
