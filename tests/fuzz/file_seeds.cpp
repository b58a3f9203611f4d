// First inputs that the program itself writes: GGUF files, importance matrices, saved logits.
#include <cstring>
#include <numeric>
#include <vector>

#include "fuzz/seeds.h"
#include "gguf/dtype.h"
#include "support/gguf_bytes.h"
#include "tools/imatrix/imatrix_file.h"
#include "tools/perplexity/base_logits.h"
#include "tools/perplexity/score.h"

namespace tandem::fuzz {
namespace {

// The bytes of a file that `write(path)` makes.
template <class Write>
std::string written(Write&& write) {
  const test::TempDir directory;
  const std::string path = directory.path("file");
  write(path);
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

void seed_gguf(SeedFolder& folder) {
  folder.add("small", test::small_gguf().bytes());
  test::RawGguf two = test::small_gguf();
  two.version = 2;
  folder.add("v2", two.bytes());
  for (const DTypeInfo& info : all_dtypes()) {
    test::RawGguf file;
    file.pairs = {test::kv_u32("general.alignment", 8)};
    file.alignment = 8;
    file.tensors = {test::tensor_info("t", {static_cast<uint64_t>(info.block_elements), 1, 2},
                                      static_cast<uint32_t>(info.dtype), 0)};
    file.data.assign(2 * info.block_bytes, '\x5a');
    folder.add(std::string(info.name), file.bytes());
  }
}

void seed_imatrix(SeedFolder& folder) {
  tools::ImportanceSums sums;
  sums.datasets = {"a.txt", "b.txt"};
  sums.n_chunks = 3;
  sums.chunk_size = 512;
  sums.entries["blk.0.attn_q.weight"] = {{1.0f, 0.5f, 0.0f, 3.0f}, {24}};
  sums.entries["blk.0.ffn_up_exps.weight"] = {{1.0f, 2.0f, 0.0f, 0.0f}, {24, 0}};
  folder.add("gguf", written([&](const std::string& path) { tools::write_imatrix(sums, path); }));
  test::ByteString dat;
  dat.u32(2);
  for (const char* name : {"blk.0.attn_q.weight", "output.weight"}) {
    dat.u32(static_cast<uint32_t>(std::strlen(name))).raw(name).u32(7).u32(3);
    for (const float x : {1.0f, 0.0f, 2.5f}) dat.number(x);
  }
  folder.add("dat", dat.bytes());
  folder.add("dat_with_dataset", dat.u32(3).u32(5).raw("a.txt").bytes());
}

void seed_base_logits(SeedFolder& folder) {
  for (const int64_t n_vocab : {1, 5, 8}) {
    tools::TextChunks chunks;
    chunks.n_ctx = 6;
    chunks.n_chunks = 2;
    for (int32_t i = 0; i < 12; ++i) chunks.tokens.push_back(i % static_cast<int32_t>(n_vocab));
    folder.add(written([&](const std::string& path) {
      tools::BaseLogitsWriter writer(path, chunks, n_vocab);
      std::vector<float> logits(static_cast<size_t>(n_vocab));
      for (int64_t i = 0; i < chunks.n_chunks * (chunks.n_ctx - tools::first_scored(chunks.n_ctx)); ++i) {
        std::iota(logits.begin(), logits.end(), static_cast<float>(i));
        writer.add(logits);
      }
      writer.finish();
    }));
  }
}

}  // namespace tandem::fuzz
