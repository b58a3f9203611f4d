#include "kv/open_groups.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace tandem {

int64_t open_block_count(int64_t n_sequences, int64_t n_ubatch, int64_t block_size) {
  const int64_t of_sequence = kKiviWindow / block_size + 2;
  return n_sequences * of_sequence + ceil_div(std::max<int64_t>(n_ubatch, 1), block_size);
}

OpenGroups::OpenGroups(const BlockPool& pool, int64_t n_open, int64_t block_size, Close close)
    : pool_(pool),
      block_size_(block_size),
      close_(std::move(close)),
      place_of_(static_cast<size_t>(pool.n_blocks()), -1),
      states_(static_cast<size_t>(n_open)) {}

void OpenGroups::drop(int32_t block) {
  states_[place(block)] = State{};
  place_of_[static_cast<size_t>(block)] = -1;
  ++version_;
}

void OpenGroups::close(std::span<const int32_t> blocks) {
  if (blocks.empty()) return;
  close_(blocks);
  for (const int32_t block : blocks) drop(block);
}

// Of what can make room, blocks that nobody has any more cost nothing.
int32_t OpenGroups::free_place() {
  State* oldest = nullptr;
  for (State& s : states_) {
    if (s.block >= 0 && pool_.owners(s.block) == 0) drop(s.block);
    if (s.block < 0) return static_cast<int32_t>(&s - states_.data());
    if (s.n_tokens < block_size_ || s.last_used == clock_) continue;
    if (!oldest || s.last_used < oldest->last_used) oldest = &s;
  }
  TANDEM_CHECK(oldest != nullptr);  // open_block_count() counts enough
  const int32_t block = oldest->block;
  close({&block, 1});
  return static_cast<int32_t>(oldest - states_.data());
}

void OpenGroups::append(std::span<const int32_t> blocks, int64_t before, int64_t after, Rows rows) {
  const int64_t length = rows == Rows::known ? after : before;
  const int64_t n_closed = std::max<int64_t>(0, length - kKiviWindow) / block_size_;
  // Those that were closed before are at the front, but for some that others have closed.
  const auto n_whole = static_cast<size_t>(std::min(n_closed, before / block_size_));
  size_t n_before = n_whole;
  while (n_before > 0 && is_open(blocks[n_before - 1])) --n_before;
  close(blocks.subspan(n_before, n_whole - n_before));
  for (int64_t i = n_closed; i < ceil_div(after, block_size_); ++i) {
    const int32_t block = blocks[static_cast<size_t>(i)];
    const bool is_new = i * block_size_ >= before;
    if (is_new && !is_open(block)) {
      const int32_t free = free_place();
      states_[static_cast<size_t>(free)].block = block;
      place_of_[static_cast<size_t>(block)] = free;
      ++version_;
    }
    if (!is_open(block)) {
      TANDEM_CHECK((i + 1) * block_size_ <= before);  // new tokens never go into a closed block
      continue;
    }
    State& state = states_[place(block)];
    state.n_tokens = std::min(block_size_, after - i * block_size_);
    state.last_used = clock_;
  }
  // A block of known rows that was begun before is whole now.
  const auto begun = static_cast<size_t>(before / block_size_);
  if (before % block_size_ != 0 && before / block_size_ < n_closed && is_open(blocks[begun]))
    states_[place(blocks[begun])].n_tokens = block_size_;
  // Blocks of known rows that are closed at once; their places are of sequences that had these blocks before.
  for (int64_t i = ceil_div(before, block_size_); i < n_closed; ++i) {
    if (is_open(blocks[static_cast<size_t>(i)])) drop(blocks[static_cast<size_t>(i)]);
  }
}

}  // namespace tandem
