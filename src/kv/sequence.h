// A sequence of cached tokens: its length and the blocks that hold it, in order. Position p lies in
// blocks()[p / block_size] at offset p % block_size. A sequence can share the whole blocks of another's
// beginning (prefix reuse); a shared block is never written, since only positions past the shared part are
// appended.
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

  // Room for n more tokens: takes blocks and writes the slot of each new position to slots[n]. Nothing
  // changes when it throws Error(out_of_memory).
  void append(int64_t n, int32_t* slots);
  // Forgets the positions from `length` on. If others share the block that `length` falls into, all of that
  // block is forgotten, so length() may then be smaller than asked for.
  void truncate(int64_t length);
  // length() is whole blocks: goes on with one that is in use and full.
  void append_shared(int32_t block);
  // Takes a block that holds the same in place of its own i-th one.
  void replace(size_t i, int32_t block);

 private:
  BlockPool* pool_;
  int64_t block_size_;
  int64_t length_ = 0;
  std::vector<int32_t> blocks_;
};

}  // namespace tandem
