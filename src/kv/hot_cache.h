// The hot part of split caches: which positions of the sequence lie in it, in which blocks, and how they
// get there. The newest positions are kept there, n_keep of them at least; before a step that needs more room
// the oldest blocks go to the host's part, whose pool has a block for every position (KvSequence::blocks).
// All layers go together.
//
// For one sequence. It need not be told when the sequence is truncated: that shows in its length when
// append() is called, and blocks that lie on the host come back as far as they are among the newest n_keep
// positions again.
//
// Belongs to the cache's thread.
#pragma once

#include <span>
#include <vector>

#include "kv/cache.h"
#include "kv/rows.h"
#include "kv/sequence.h"

namespace tandem {

// Blocks that the hot cache needs, so that n_keep positions stay there beside those of any step: of n_keep
// + n_ubatch positions in a row, wherever in a block the first lies; no more than the whole cache has.
int64_t hot_block_count(const KvConfig& config, int64_t n_keep, int64_t n_ubatch);
// The position that the hot cache begins with after a step that made the sequence n_tokens long.
int64_t hot_from_of(const KvConfig& config, int64_t n_hot_blocks, int64_t n_tokens);

class HotCache {
 public:
  // The cache has hot pools. It outlives this.
  HotCache(KvCache& cache, int64_t n_keep);

  // Makes room for the last n tokens of the sequence, which it has just appended, and gives their slots here.
  // When it throws what the devices' copies throw, all that was cached still is, on either side.
  void append(const KvSequence& sequence, int64_t n, int32_t* slots);

  // For the steps' inputs: where the part begins, and its blocks in order of position.
  int32_t from() const { return static_cast<int32_t>(from_); }
  std::span<const int32_t> blocks() const { return blocks_; }

  // Rows of the sequence, as in kv/rows.h.
  void read_rows(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const;
  // What was written to the host's part for the whole sequence is what counts.
  void forget();
  // Everything goes to the host: afterwards the cache can do without the hot pools.
  void move_out();

 private:
  enum class Way { out, back };
  int64_t first_block() const { return from_ / block_size_; }
  void settle(int64_t length);
  void move_out_first(size_t n_blocks);
  void bring_back_from(const KvSequence& sequence, int64_t block);
  void copy(std::span<const int32_t> host, std::span<const int32_t> hot, Way way);
  void finish_copies();

  KvCache& cache_;
  BlockPool pool_;
  int64_t n_keep_, block_size_;
  int64_t from_ = 0;             // a multiple of the block size; positions before it are on the host
  std::vector<int32_t> blocks_;  // of the positions from there on,
  std::vector<int32_t> host_;    // and where those go on the host
};

}  // namespace tandem
