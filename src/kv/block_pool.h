// BlockPool: which blocks of a cache are free, and how many owners each block has. One pool serves all
// layers: block b is block b of every layer. Not synchronized.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tandem {

class BlockPool {
 public:
  explicit BlockPool(int64_t n_blocks);

  // Takes a free block; it then has one owner. Throws Error(out_of_memory) when the cache is full.
  int32_t take();
  void share(int32_t block);    // adds an owner
  void release(int32_t block);  // removes an owner; the block is free when none is left
  int owners(int32_t block) const { return owners_[block]; }

  int64_t n_blocks() const { return static_cast<int64_t>(owners_.size()); }
  int64_t n_free() const { return static_cast<int64_t>(free_.size()); }

 private:
  std::vector<int32_t> owners_;
  std::vector<int32_t> free_;  // a stack; low numbers are taken first
};

}  // namespace tandem
