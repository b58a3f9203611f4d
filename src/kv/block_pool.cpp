#include "kv/block_pool.h"

#include "base/error.h"

namespace tandem {

BlockPool::BlockPool(int64_t n_blocks) : owners_(static_cast<size_t>(n_blocks), 0) {
  free_.reserve(owners_.size());
  for (int64_t b = n_blocks; b-- > 0;) free_.push_back(static_cast<int32_t>(b));
}

int32_t BlockPool::take() {
  if (free_.empty()) {
    throw_error(ErrorCode::out_of_memory, "the KV cache is full: all {} blocks are in use", n_blocks());
  }
  const int32_t block = free_.back();
  free_.pop_back();
  owners_[block] = 1;
  return block;
}

void BlockPool::share(int32_t block) {
  TANDEM_CHECK(owners(block) > 0);
  ++owners_[block];
}

void BlockPool::release(int32_t block) {
  TANDEM_CHECK(owners(block) > 0);
  if (--owners_[block] == 0) free_.push_back(block);
}

}  // namespace tandem
