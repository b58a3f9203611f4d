// KvSequence: the length of a sequence of cached tokens, and its blocks in order. Position p lies in
// blocks()[p / block_size] at offset p % block_size. Sequences can share the whole blocks of a common
// prefix. A shared block is never written, because only positions past it are appended.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace tandem {

class KvSequence {
 public:
  KvSequence(BlockPool& pool, int64_t block_size) : pool_(&pool), block_size_(block_size) {}
  ~KvSequence() { truncate(0); }
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  int64_t length() const { return length_; }
  std::span<const int32_t> blocks() const { return blocks_; }

  // Takes blocks for n more tokens and writes the KV slot of each new position to slots[n]. Throws
  // Error(out_of_memory), and then changes nothing.
  void append(int64_t n, int32_t* slots);
  // Drops the positions from `length` on. If the block that `length` falls into is shared, drops all of
  // that block, so length() may end up smaller than `length`.
  void truncate(int64_t length);
  // Appends a full block that is already in use. length() must be a multiple of the block size.
  void append_shared(int32_t block);
  // Replaces block i with another that holds the same tokens.
  void replace(size_t i, int32_t block);

 private:
  BlockPool* pool_;
  int64_t block_size_;
  int64_t length_ = 0;
  std::vector<int32_t> blocks_;
};

}  // namespace tandem
