// Reads arbitrary bytes as a block of a store, as --kv-store does: whatever a file in the folder holds, it is either the
// block that was asked for or missing. The first byte says what is mended before, so that inputs get past the checksums.
#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/files.h"
#include "fuzz/fuzz_target.h"
#include "kv/block_store.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tandem;
  static const test::TempDir directory;
  static BlockStore store(directory.path("kv"));
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data, size).subspan(1));
  std::vector<std::byte> bytes(input.begin(), input.end());
  constexpr size_t kHead = BlockHeader::kBytes, kChecksumAt = kHead - 8;
  const auto put = [&](size_t at, uint64_t number) { std::memcpy(bytes.data() + at, &number, sizeof number); };
  if (bytes.size() >= kHead && (data[0] & 1) != 0) put(24, block_checksum(std::span(bytes).subspan(kHead)));
  if (bytes.size() >= kHead && (data[0] & 2) != 0) put(16, bytes.size() - kHead);
  if (bytes.size() >= kHead && (data[0] & 4) != 0) put(kChecksumAt, block_checksum(std::span(bytes).first(kChecksumAt)));
  const Sha256 name = sha256("block");
  const auto kind = (data[0] & 8) != 0 ? BlockKind::state : BlockKind::rows;
  const std::string stem = store.folder() + "/" + hex_text(name);
  const std::string path = stem + (kind == BlockKind::rows ? ".rows" : ".state");
  std::filesystem::remove(stem + (kind == BlockKind::rows ? ".state" : ".rows"));  // an earlier input's
  test::write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});

  const std::optional<BlockHeader> header = read_header(bytes);
  const std::vector<StoredModel> contents = store.contents();
  TANDEM_CHECK(contents.size() == (header ? 1 : 0));
  if (header) {
    TANDEM_CHECK(contents[0].model == header->model && header->model.size() <= BlockHeader::kMaxModelBytes);
    TANDEM_CHECK(read_header(header_bytes(*header)).has_value());
  }
  const size_t n_bytes = bytes.size() - std::min(bytes.size(), kHead);
  const auto read = store.read(name, kind, n_bytes);
  TANDEM_CHECK(file_exists(path) == read.has_value());
  if (read) {
    TANDEM_CHECK(header && header->kind == kind && header->name == name && header->n_bytes == n_bytes);
    TANDEM_CHECK(std::ranges::equal(*read, std::span(bytes).subspan(kHead)));
  }
  return 0;
}
