#include "kv/sequence.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

void KvSequence::append(int64_t n, int32_t* slots) {
  const auto needed = static_cast<size_t>(ceil_div(length_ + n, block_size_));
  const size_t had = blocks_.size();
  try {
    blocks_.reserve(needed);
    while (blocks_.size() < needed) blocks_.push_back(pool_->take());
  } catch (...) {
    while (blocks_.size() > had) {
      pool_->release(blocks_.back());
      blocks_.pop_back();
    }
    throw;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = length_ + i;
    slots[i] = static_cast<int32_t>(blocks_[p / block_size_] * block_size_ + p % block_size_);
  }
  length_ += n;
}

void KvSequence::truncate(int64_t length) {
  TANDEM_CHECK(length >= 0 && length <= length_);
  const auto kept = static_cast<size_t>(ceil_div(length, block_size_));
  while (blocks_.size() > kept) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
  }
  // A shared block must not be written, so a partial last block that is shared is dropped as a whole.
  if (length % block_size_ != 0 && pool_->owners(blocks_.back()) > 1) {
    pool_->release(blocks_.back());
    blocks_.pop_back();
    length -= length % block_size_;
  }
  length_ = length;
}

void KvSequence::append_shared(int32_t block) {
  TANDEM_CHECK(length_ % block_size_ == 0);
  blocks_.push_back(block);
  pool_->share(block);
  length_ += block_size_;
}

void KvSequence::replace(size_t i, int32_t block) {
  pool_->share(block);
  pool_->release(blocks_[i]);
  blocks_[i] = block;
}

}  // namespace tandem
