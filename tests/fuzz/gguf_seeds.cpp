// Writes small valid GGUF files as first inputs of the fuzzer to the folder given as argument.
#include <cstdio>
#include <filesystem>
#include <string>

#include "gguf/dtype.h"
#include "support/gguf_bytes.h"

int main(int n_arguments, char** arguments) {
  using namespace tandem;
  if (n_arguments != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  const std::string folder = std::string(arguments[1]) + "/";
  std::filesystem::create_directories(folder);
  test::write_file(folder + "small", test::small_gguf().bytes());
  test::RawGguf two = test::small_gguf();
  two.version = 2;
  test::write_file(folder + "v2", two.bytes());
  for (const DTypeInfo& info : all_dtypes()) {
    test::RawGguf file;
    file.pairs = {test::kv_u32("general.alignment", 8)};
    file.alignment = 8;
    file.tensors = {
        test::tensor_info("t", {info.block_elements, 1, 2}, static_cast<uint32_t>(info.dtype), 0)};
    file.data.assign(2 * info.block_bytes, '\x5a');
    test::write_file(folder + std::string(info.name), file.bytes());
  }
  return 0;
}
