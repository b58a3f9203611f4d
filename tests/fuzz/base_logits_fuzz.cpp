// Feeds arbitrary bytes to the reader of saved logits and compares a flat prediction with all of them.
#include <vector>

#include "fuzz/fuzz_target.h"
#include "tools/perplexity/kl_divergence.h"
#include "tools/perplexity/score.h"

namespace tandem::tools {
namespace {

void check(const std::string& path) {
  BaseLogitsReader reader(path);
  const TextChunks& chunks = reader.chunks();
  const std::vector<float> logits(static_cast<size_t>(reader.n_vocab()), 0.5f);
  KlDivergence divergence;
  int64_t row = 0;
  for (int64_t chunk = 0; chunk < chunks.n_chunks; ++chunk) {
    const std::span<const int32_t> tokens = chunks.chunk(chunk);
    for (int64_t i = first_scored(chunks.n_ctx); i < chunks.n_ctx; ++i) {
      divergence.add(logits, reader.row(row++), tokens[static_cast<size_t>(i)]);
    }
  }
  TANDEM_CHECK(static_cast<int64_t>(divergence.count()) == row);
  TANDEM_CHECK(!kl_table_row(chunks.n_chunks, divergence).empty() && !kl_report(divergence).empty());
}

}  // namespace
}  // namespace tandem::tools

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static fuzz::MemoryFile input;
  input.set(fuzz::Input(data, size).rest());
  fuzz::accepts({ErrorCode::bad_file}, [&] { tools::check(input.path()); });
  return 0;
}
