#include "kv/sequence.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

void KvSequence::append(int64_t n, int32_t* slots, OpenGroups::Rows rows) {
  const auto needed = static_cast<size_t>(ceil_div(length_ + n, block_size_));
  const size_t had = blocks_.size();
  if (state_slots_) {
    thin_states();
    states_.reserve(states_.size() + 1);
    states_.push_back({length_ + n, state_slots_->take()});
  }
  try {
    blocks_.reserve(needed);
    while (blocks_.size() < needed) blocks_.push_back(pool_->take());
    if (open_groups_) open_groups_->append(blocks_, length_, length_ + n, rows);
  } catch (...) {
    while (blocks_.size() > had) {
      pool_->release(blocks_.back());
      blocks_.pop_back();
    }
    if (state_slots_) drop_state(states_.size() - 1);
    throw;
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t p = length_ + i;
    slots[i] = static_cast<int32_t>(blocks_[p / block_size_] * block_size_ + p % block_size_);
  }
  length_ += n;
}

KvSequence::StepSlots KvSequence::step_slots() const {
  const int32_t write = states_.back().slot;
  return {states_.size() > 1 ? states_[states_.size() - 2].slot : write, write};
}

void KvSequence::drop_state(size_t i) {
  state_slots_->release(states_[i].slot);
  states_.erase(states_.begin() + static_cast<int64_t>(i));
}

// Leaves the current state, which the next step reads, and the checkpoints: the newest, and of the others those
// that lie closer together the nearer they are to the end.
void KvSequence::thin_states() {
  for (size_t i = states_.size(); i-- > 0;) {
    if (i + 1 < states_.size() && states_[i].position % block_size_ != 0) drop_state(i);
  }
  while (static_cast<int64_t>(states_.size()) > n_checkpoints_ + 1) {
    size_t worst = 0;
    double least = 0;
    // The newest checkpoint only goes if it is the only one.
    for (size_t i = 0; i + 2 < states_.size() || i == 0; ++i) {
      const int64_t before = i == 0 ? 0 : states_[i - 1].position, after = states_[i + 1].position;
      const double gap = static_cast<double>(after - before) /
                         static_cast<double>(length_ - states_[i].position + block_size_);
      if (i > 0 && gap >= least) continue;
      worst = i;
      least = gap;
    }
    drop_state(worst);
  }
}

void KvSequence::truncate(int64_t length) {
  TANDEM_CHECK(length >= 0 && length <= length_);
  for (;;) {
    int64_t next = length;
    if (state_slots_ && next < length_) {
      while (!states_.empty() && states_.back().position > next) drop_state(states_.size() - 1);
      next = states_.empty() ? 0 : states_.back().position;
    }
    const auto last = static_cast<size_t>(next / block_size_);
    if (open_groups_ && next % block_size_ != 0 && !open_groups_->is_open(blocks_[last]))
      next -= next % block_size_;
    if (next == length) break;
    length = next;
  }
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
  if (open_groups_ && length % block_size_ != 0) open_groups_->cut(blocks_.back(), length % block_size_);
  length_ = length;
}

void KvSequence::append_shared(std::span<const int32_t> blocks, std::optional<int32_t> state) {
  TANDEM_CHECK(length_ % block_size_ == 0 && state.has_value() == is_recurrent() && !blocks.empty());
  blocks_.reserve(blocks_.size() + blocks.size());
  states_.reserve(states_.size() + 1);
  for (const int32_t block : blocks) {
    pool_->share(block);
    blocks_.push_back(block);
  }
  length_ += static_cast<int64_t>(blocks.size()) * block_size_;
  if (!state) return;
  state_slots_->share(*state);
  states_.push_back({length_, *state});
  thin_states();
}

void KvSequence::replace(size_t i, int32_t block) {
  pool_->share(block);
  pool_->release(blocks_[i]);
  blocks_[i] = block;
}

}  // namespace tandem
