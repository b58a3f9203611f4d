// PrefixCache: which full blocks of the cache hold which beginning of a text, so that it is computed once. A
// block is known by its tokens and the beginning before it; blocks that nobody else uses stay until their
// room is needed, those that were not asked for the longest go first. Holds a share of every block it knows.
// One thread.
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

  // A beginning of whole blocks. Good as long as somebody else uses its last block too.
  using Beginning = uint64_t;
  static constexpr Beginning kEmpty = 0;
  struct Found {
    Beginning beginning;
    int32_t block;
  };

  // The block that holds `tokens`, a block's worth, after a beginning.
  std::optional<Found> find(Beginning after, std::span<const int32_t> tokens);
  // Remembers it. It must not be known.
  Beginning add(Beginning after, std::span<const int32_t> tokens, int32_t block);

  // Blocks that nobody else uses.
  int64_t n_unused() const;
  // Lets unused blocks go until n of the pool's are free; false when that cannot be.
  bool make_free(int64_t n);

 private:
  struct Entry {
    Beginning before;
    int32_t block;
    int64_t n_after;  // blocks known after this one
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
