// PrefixCache: finds the full blocks that hold the beginning of a text, so that a common prefix is computed
// once. A block is identified by its tokens and the beginning before it. Blocks without another owner stay
// until their room is needed; the least recently used go first. Is itself an owner of every block that it
// knows. Single-threaded.
//
// With recurrent layers, a text can only go on from a beginning whose state is kept too: the cache owns up to
// max_states of these.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "kv/block_pool.h"

namespace tandem {

class PrefixCache {
 public:
  // states: of a model with recurrent layers; null for others.
  explicit PrefixCache(BlockPool& pool, BlockPool* states = nullptr, int64_t max_states = 0)
      : pool_(&pool), states_(states), max_states_(max_states) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A prefix of whole blocks. Valid as long as its last block has another owner.
  using Beginning = uint64_t;
  static constexpr Beginning kEmpty = 0;
  struct Found {
    Beginning beginning;
    int32_t block;
    std::optional<int32_t> state;  // the slot with the state after it
  };

  // Returns the block with `tokens` (one block's worth) after a beginning, if it is known.
  std::optional<Found> find(Beginning after, std::span<const int32_t> tokens);
  // Adds a block, which must not be known yet. Returns the beginning that ends with it.
  Beginning add(Beginning after, std::span<const int32_t> tokens, int32_t block);

  // Keeps the state slot after a beginning, unless it has one. When there are max_states already, the least
  // recently used one makes room if the new one `is_needed`; otherwise the new one is not kept.
  void add_state(Beginning after, int32_t slot, bool is_needed);

  // Returns the number of blocks without another owner.
  int64_t n_unused() const;
  // Releases unused blocks until n blocks of the pool are free. Returns false if that is impossible.
  bool make_free(int64_t n);

 private:
  struct Entry {
    Beginning before;
    int32_t block;
    int64_t n_after;  // known blocks that directly follow this one
    uint64_t last_used;
    std::string key;
    std::optional<int32_t> state;
  };
  bool is_unused(const Entry& e) const { return pool_->owners(e.block) == 1; }
  void forget(Beginning b);
  void forget_state(Entry& entry);

  BlockPool* pool_;
  BlockPool* states_;
  int64_t max_states_, n_states_ = 0;
  std::unordered_map<std::string, Beginning> by_key_;
  std::unordered_map<Beginning, Entry> entries_;
  uint64_t n_made_ = 0, clock_ = 0;
};

}  // namespace tandem
