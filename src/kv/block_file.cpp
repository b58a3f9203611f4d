#include "kv/block_file.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace tandem {
namespace {

constexpr char kMagic[] = {'T', 'A', 'N', 'D', 'E', 'M', 'K', 'V'};
constexpr uint32_t kBlockFileVersion = 1;
constexpr size_t kModelAt = 104, kChecksumAt = 248;

template <class Value>
void put(std::span<std::byte> bytes, size_t at, const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

template <class Value>
Value get(std::span<const std::byte> bytes, size_t at) {
  Value value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

uint64_t block_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::array<std::byte, BlockHeader::kBytes> header_bytes(const BlockHeader& header) {
  std::array<std::byte, BlockHeader::kBytes> bytes{};
  put(bytes, 0, kMagic);
  put(bytes, 8, kBlockFileVersion);
  put(bytes, 12, static_cast<uint32_t>(header.kind));
  put(bytes, 16, header.n_bytes);
  put(bytes, 24, header.checksum);
  put(bytes, 32, header.name);
  put(bytes, 64, header.root);
  put(bytes, 96, header.n_tokens);
  const size_t n = std::min(header.model.size(), BlockHeader::kMaxModelBytes);
  std::memcpy(bytes.data() + kModelAt, header.model.data(), n);
  put(bytes, kChecksumAt, block_checksum(std::span(bytes).first(kChecksumAt)));
  return bytes;
}

std::optional<BlockHeader> read_header(std::span<const std::byte> bytes) {
  if (bytes.size() < BlockHeader::kBytes || std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) return {};
  if (get<uint32_t>(bytes, 8) != kBlockFileVersion) return {};
  if (get<uint64_t>(bytes, kChecksumAt) != block_checksum(bytes.first(kChecksumAt))) return {};
  const auto kind = get<uint32_t>(bytes, 12);
  if (kind > static_cast<uint32_t>(BlockKind::state)) return {};
  BlockHeader header;
  header.kind = static_cast<BlockKind>(kind);
  header.n_bytes = get<uint64_t>(bytes, 16);
  header.checksum = get<uint64_t>(bytes, 24);
  header.name = get<Sha256>(bytes, 32);
  header.root = get<Sha256>(bytes, 64);
  header.n_tokens = get<uint32_t>(bytes, 96);
  const auto* model = reinterpret_cast<const char*>(bytes.data()) + kModelAt;
  header.model.assign(model, strnlen(model, BlockHeader::kMaxModelBytes));
  return header;
}

}  // namespace tandem
