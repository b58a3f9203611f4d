// PrefixCache: finds the full blocks that hold the beginning of a text, so that a common prefix is computed
// once. A block is identified by its tokens and the beginning before it. Blocks without another owner stay
// until their room is needed; the least recently used go first. Is itself an owner of every block that it
// knows. Single-threaded.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "kv/block_pool.h"

namespace tandem {

class PrefixCache {
 public:
  explicit PrefixCache(BlockPool& pool) : pool_(&pool) {}
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A prefix of whole blocks. Valid as long as its last block has another owner.
  using Beginning = uint64_t;
  static constexpr Beginning kEmpty = 0;
  struct Found {
    Beginning beginning;
    int32_t block;
  };

  // Returns the block with `tokens` (one block's worth) after a beginning, if it is known.
  std::optional<Found> find(Beginning after, std::span<const int32_t> tokens);
  // Adds a block, which must not be known yet. Returns the beginning that ends with it.
  Beginning add(Beginning after, std::span<const int32_t> tokens, int32_t block);

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
  };
  bool is_unused(const Entry& e) const { return pool_->owners(e.block) == 1; }
  void forget(Beginning b);

  BlockPool* pool_;
  std::unordered_map<std::string, Beginning> by_key_;
  std::unordered_map<Beginning, Entry> entries_;
  uint64_t n_made_ = 0, clock_ = 0;
};

}  // namespace tandem
