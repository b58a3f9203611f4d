// Feeds arbitrary bytes to the GGUF reader. It must either throw Error(bad_file) or return what gguf/parse.h
// guarantees; everything it returns must then be readable.
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/fuzz_target.h"
#include "gguf/file.h"
#include "gguf/quants.h"

namespace tandem {
namespace {

// Reading a value as the wrong type may only throw an Error.
template <class Get>
void attempt(Get&& get) {
  fuzz::accepts({ErrorCode::bad_file}, get);
}

void read_metadata(const Metadata& metadata) {
  for (const Metadata::Entry& entry : metadata.entries()) {
    TANDEM_CHECK(metadata.find(entry.key) == &entry.value);
    TANDEM_CHECK(entry.value.short_text().size() < 4096);
    attempt([&] { metadata.get<uint32_t>(entry.key); });
    attempt([&] { metadata.get<float>(entry.key); });
    attempt([&] { metadata.get<bool>(entry.key); });
    attempt([&] { metadata.get<std::string>(entry.key); });
    attempt([&] { metadata.get_strings(entry.key); });
    attempt([&] { metadata.get_vector<int32_t>(entry.key); });
    attempt([&] { metadata.get_vector<double>(entry.key); });
  }
}

void read_tensor(const GgufFile& file, const TensorInfo& tensor, std::span<const std::byte> bytes) {
  TANDEM_CHECK(file.find_tensor(tensor.name) == &tensor);
  TANDEM_CHECK(tensor.offset % file.alignment() == 0);
  TANDEM_CHECK(tensor.offset <= bytes.size() && tensor.n_bytes <= bytes.size() - tensor.offset);
  TANDEM_CHECK(tensor.data == bytes.data() + tensor.offset);
  TANDEM_CHECK(tensor.n_bytes ==
               row_bytes(tensor.dtype, tensor.dims[0]) * static_cast<uint64_t>(tensor.n_rows()));
  if (!dtype_info(tensor.dtype).to_float) return;
  // Aligned like a mapping.
  std::vector<uint64_t> row(row_bytes(tensor.dtype, tensor.dims[0]) / sizeof(uint64_t) + 1);
  std::memcpy(row.data(), tensor.data, row_bytes(tensor.dtype, tensor.dims[0]));
  std::vector<float> floats(static_cast<size_t>(tensor.dims[0]));
  dequantize_row(tensor.dtype, row.data(), floats.data(), tensor.dims[0]);
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  const std::span<const std::byte> bytes = fuzz::Input(data, size).bytes();
  attempt([&] {
    const GgufFile file(bytes, "fuzz.gguf");
    read_metadata(file.metadata());
    for (const TensorInfo& tensor : file.tensors()) read_tensor(file, tensor, bytes);
  });
  return 0;
}
