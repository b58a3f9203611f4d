// KvSequence: the length of a sequence of cached tokens, and its blocks in order. Position p lies in
// blocks()[p / block_size] at offset p % block_size. Sequences can share the whole blocks of a common
// prefix. A shared block is never written, because only positions past it are appended.
//
// With recurrent layers, the sequence also has states, each of the tokens before a position: the current one,
// and checkpoints at multiples of the block size to which it can be cut back. Appending writes a new state slot
// and leaves the others as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "kv/open_groups.h"

namespace tandem {

class KvSequence {
 public:
  // state_slots: of a model with recurrent layers; null for others.
  // open_groups: of a grouped cache; null for others.
  KvSequence(BlockPool& pool, int64_t block_size, BlockPool* state_slots = nullptr, int64_t n_checkpoints = 0,
             OpenGroups* open_groups = nullptr)
      : pool_(&pool),
        block_size_(block_size),
        state_slots_(state_slots),
        n_checkpoints_(n_checkpoints),
        open_groups_(open_groups) {}
  ~KvSequence() { truncate(0); }
  KvSequence(const KvSequence&) = delete;
  KvSequence& operator=(const KvSequence&) = delete;

  int64_t length() const { return length_; }
  std::span<const int32_t> blocks() const { return blocks_; }

  // The state after the tokens before `position`.
  struct State {
    int64_t position;
    int32_t slot;
  };
  // By position; the last one's is length(). Empty if the sequence is, and without recurrent layers.
  std::span<const State> states() const { return states_; }
  // The slots that the step of the newest tokens reads and writes. At position 0 it reads nothing.
  struct StepSlots {
    int32_t read, write;
  };
  StepSlots step_slots() const;
  bool is_recurrent() const { return state_slots_ != nullptr; }
  int64_t n_checkpoints() const { return n_checkpoints_; }

  // Takes blocks for n more tokens and writes the KV slot of each new position to slots[n]. Throws
  // Error(out_of_memory), and then changes no token.
  void append(int64_t n, int32_t* slots, OpenGroups::Rows rows = OpenGroups::Rows::of_step);
  // Drops the positions from `length` on. length() may end up smaller than `length`: if the block that `length`
  // falls into is shared or a closed group (kv/open_groups.h), all of that block is dropped; with recurrent layers, all
  // after the newest state.
  void truncate(int64_t length);
  // Appends full blocks that are already in use, with recurrent layers also the state slot after them.
  // length() must be a multiple of the block size.
  void append_shared(std::span<const int32_t> blocks, std::optional<int32_t> state = {});
  // Replaces block i with another that holds the same tokens.
  void replace(size_t i, int32_t block);

 private:
  void thin_states();
  void drop_state(size_t i);

  BlockPool* pool_;
  int64_t block_size_;
  BlockPool* state_slots_;
  int64_t n_checkpoints_;
  OpenGroups* open_groups_;
  int64_t length_ = 0;
  std::vector<int32_t> blocks_;
  std::vector<State> states_;
};

}  // namespace tandem
