// Feeds arbitrary bytes to the reader of importance matrices, GGUF and the older format. What is accepted can be merged
// with itself, written, and read again.
#include <cmath>

#include "fuzz/fuzz_target.h"
#include "tools/imatrix/imatrix_file.h"

namespace tandem::tools {
namespace {

void check(const std::string& path) {
  ImportanceSums sums;
  if (!fuzz::accepts({ErrorCode::bad_file}, [&] { sums = read_imatrix_sums(path, 512); })) return;
  const ImportanceMatrix matrix = read_imatrix(path);
  TANDEM_CHECK(matrix.entries.size() == sums.entries.size());
  for (const auto& [name, entry] : sums.entries) {
    const std::vector<float>* means = matrix.find(name);
    TANDEM_CHECK(means != nullptr && means->size() == entry.sums.size());
    for (const float mean : *means) TANDEM_CHECK(std::isfinite(mean) && mean >= 0.0f);
  }
  ImportanceSums twice = sums;
  // The sum of two finite numbers may be infinite.
  if (!fuzz::accepts({ErrorCode::bad_file}, [&] { twice.merge(sums); })) return;
  TANDEM_CHECK(twice.entries.size() == sums.entries.size());
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::MemoryFile input;
  tools::check(input.set(fuzz::Input(data, size).rest()));
  return 0;
}
