// The file of one kept block (block_store.h): a header of 256 bytes, and the block's bytes. Numbers are little-endian.
//
//     0    "TANDEMKV"
//     8    u32   version, 1
//     12   u32   kind: 0 rows, 1 state
//     16   u64   bytes after the header
//     24   u64   their checksum
//     32   32 bytes, the block's name
//     64   32 bytes, the root of its chain
//     96   u32   tokens of the text up to the block's end
//     100  u32   0
//     104  144 bytes, the model in words for people, ended by a zero
//     248  u64   checksum of the 248 bytes before
//
// Checksums are XXH3 of 64 bits: against damage, not against forgers.
// Nothing here throws. A file that differs from this in anything is damaged; a reader takes it for missing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/sha256.h"

namespace tandem {

enum class BlockKind : uint32_t {
  rows,   // the keys and values of the block's tokens
  state,  // the state of the recurrent layers after its last token
};

struct BlockHeader {
  static constexpr size_t kBytes = 256, kMaxModelBytes = 143;

  BlockKind kind = BlockKind::rows;
  uint64_t n_bytes = 0, checksum = 0;  // of what follows
  Sha256 name{}, root{};
  uint32_t n_tokens = 0;
  std::string model;  // cut to kMaxModelBytes
};

std::array<std::byte, BlockHeader::kBytes> header_bytes(const BlockHeader& header);
uint64_t block_checksum(std::span<const std::byte> bytes);
// None if the bytes are not a sound header.
std::optional<BlockHeader> read_header(std::span<const std::byte> bytes);

}  // namespace tandem
