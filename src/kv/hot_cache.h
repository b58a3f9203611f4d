// HotCache: manages the hot part of split caches: which positions of the sequence it holds, in which
// blocks, and the moves between GPU and host. At least the newest n_keep positions stay in it. Before a
// step that needs more room, the oldest blocks move to the host's part, whose pool has a block for every
// position (KvSequence::blocks). All layers move together.
//
// Of a grouped cache (open_groups.h) it holds all open blocks, which are closed there: it keeps at least kKiviWindow positions.
//
// Serves one sequence. Truncation needs no notice: append() sees it from the length of the sequence. If
// that makes blocks on the host part of the newest n_keep positions again, append() copies them back.
//
// Belongs to the cache's thread.
#pragma once

#include <span>
#include <vector>

#include "kv/cache.h"
#include "kv/rows.h"
#include "kv/sequence.h"

namespace tandem {

// Returns the blocks that the hot cache needs to keep n_keep positions besides those of any step: enough
// for n_keep + n_ubatch positions in a row, wherever in a block the first one lies, but no more than the
// whole cache has.
int64_t hot_block_count(const KvConfig& config, int64_t n_keep, int64_t n_ubatch);
// Returns the first position in the hot cache after a step that made the sequence n_tokens long.
int64_t hot_from_of(const KvConfig& config, int64_t n_hot_blocks, int64_t n_tokens);

class HotCache {
 public:
  // `cache` must have hot pools. It outlives this object.
  HotCache(KvCache& cache, int64_t n_keep);

  // Makes room for the last n tokens of the sequence, which it has just appended, and writes their hot
  // cache slots to `slots`. Throws what the devices' copies throw; then no cached position is lost, on
  // either side.
  void append(const KvSequence& sequence, int64_t n, int32_t* slots);

  // For the inputs of steps: the first position in the hot cache, and its blocks in order of position.
  int32_t from() const { return static_cast<int32_t>(from_); }
  std::span<const int32_t> blocks() const { return blocks_; }

  // Reads rows of the sequence, as in kv/rows.h.
  void read_rows(const KvSequence& sequence, size_t layer, KvHalf half, std::byte* rows) const;
  // The same of one block.
  void read_block(const KvSequence& sequence, int64_t block, size_t layer, KvHalf half, int64_t n_tokens,
                  std::byte* rows) const;
  // Moves what the sequence has to the host's part, to which more can then be written.
  void hand_back(const KvSequence& sequence);
  // Drops the hot contents, after the whole sequence has been written to the host's part.
  void forget();
  // Moves everything to the host. The hot pools can be dropped after that.
  void move_out();

 private:
  enum class Way { out, back };
  int64_t first_block() const { return from_ / block_size_; }
  void drop_from(int64_t length);
  void move_out_first(size_t n_blocks);
  void bring_back_from(const KvSequence& sequence, int64_t block);
  void copy(std::span<const int32_t> host, std::span<const int32_t> hot, Way way);
  void index_blocks(std::span<const int32_t> blocks);
  void finish_copies();
  void say_blocks();

  KvCache& cache_;
  BlockPool pool_;
  int64_t n_keep_, block_size_;
  int64_t from_ = 0;             // a multiple of the block size; positions before it are on the host
  std::vector<int32_t> blocks_;  // hot blocks of the positions from there on
  std::vector<int32_t> host_;    // their blocks on the host
};

}  // namespace tandem
