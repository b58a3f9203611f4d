// Feeds arbitrary bytes to the reader of safetensors files. What it accepts lies inside the file and can be read.
#include <vector>

#include "base/checked.h"
#include "fuzz/fuzz_target.h"
#include "tools/convert/safetensors.h"

namespace tandem::tools {
namespace {

void read_tensor(const SafetensorsFile& file, const SourceTensor& tensor, size_t n_file_bytes) {
  TANDEM_CHECK(tensor.file == &file);
  TANDEM_CHECK(tensor.offset <= n_file_bytes && tensor.n_bytes <= n_file_bytes - tensor.offset);
  TANDEM_CHECK(static_cast<uint64_t>(tensor.n_elements()) * source_dtype_bytes(tensor.dtype) ==
               tensor.n_bytes);
  TANDEM_CHECK(tensor.shape_text().size() >= 2 && !source_dtype_name(tensor.dtype).empty());
  std::vector<std::byte> bytes(tensor.n_bytes);
  file.read(tensor.offset, bytes);
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::MemoryFile input;
  input.set(fuzz::Input(data, size).rest());
  fuzz::accepts({ErrorCode::bad_file}, [&] {
    const tools::SafetensorsFile file(input.path());
    for (const auto& [name, tensor] : file.tensors()) tools::read_tensor(file, tensor, size);
  });
  return 0;
}
