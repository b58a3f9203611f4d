// OpenGroups: which blocks of a grouped cache (gguf/kivi.h) are open. A block takes new tokens as F16 rows, in a pool of few
// open blocks; it is closed, which quantizes its 32 tokens as a group and frees its place among the open ones:
// - before a step, if its sequence has kKiviWindow tokens or more after it
// - if an open place is needed and no other is left: the whole block that no step has used for longest. So of texts that
//   ended, and of a batch's texts that wait, fewer tokens may be F16.
//
// A closed block is never opened again: a sequence that is cut back into one drops all of it (KvSequence::truncate). A block
// that sequences share is closed for all of them.
//
// Belongs to the cache's thread. Throws only what `close` throws.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/block_pool.h"

namespace tandem {

inline constexpr int64_t kKiviWindow = 128;  // newest tokens that stay F16

// The open blocks that sequences need: each the newest kKiviWindow tokens wherever in a block they end, and a step its new
// tokens wherever in a block they begin.
int64_t open_block_count(int64_t n_sequences, int64_t n_ubatch, int64_t block_size);

class OpenGroups {
 public:
  // Quantizes the rows of blocks that are open.
  using Close = std::function<void(std::span<const int32_t> blocks)>;
  // `pool` outlives this.
  OpenGroups(const BlockPool& pool, int64_t n_open, int64_t block_size, Close close);
  OpenGroups(const OpenGroups&) = delete;
  OpenGroups& operator=(const OpenGroups&) = delete;

  bool is_open(int32_t block) const { return place_of_[static_cast<size_t>(block)] >= 0; }
  // [n_blocks] the place of a block among the open ones, or -1; stays where it is.
  const int32_t* places() const { return place_of_.data(); }
  // Another whenever a place has changed.
  uint64_t version() const { return version_; }

  // Blocks that the following appends use stay open until the next call.
  void begin_step() { ++clock_; }
  // Who writes the rows of appended positions: the next step, or the caller, who has them (kv/rows.h). Rows that are known
  // already and have a window after them are written to closed blocks.
  enum class Rows { of_step, known };
  // A sequence in these blocks goes from `before` to `after` tokens.
  void append(std::span<const int32_t> blocks, int64_t before, int64_t after, Rows rows);
  // Of an open block only the first n tokens are left.
  void cut(int32_t block, int64_t n) { states_[place(block)].n_tokens = n; }

 private:
  struct State {
    int32_t block = -1;  // none: the place is free
    int64_t n_tokens = 0;
    uint64_t last_used = 0;
  };
  size_t place(int32_t block) const { return static_cast<size_t>(place_of_[static_cast<size_t>(block)]); }
  void close(std::span<const int32_t> blocks);
  void drop(int32_t block);
  int32_t free_place();

  const BlockPool& pool_;
  int64_t block_size_;
  Close close_;
  std::vector<int32_t> place_of_;  // by block
  std::vector<State> states_;      // by place
  uint64_t clock_ = 0, version_ = 0;
};

}  // namespace tandem
