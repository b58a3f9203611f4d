#include "kv/prefix_cache.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace tandem {
namespace {

// Exact, not a hash: two different texts never have the same key.
std::string key_of(PrefixCache::Beginning after, std::span<const int32_t> tokens) {
  std::string key(reinterpret_cast<const char*>(&after), sizeof after);
  return key.append(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
}

}  // namespace

PrefixCache::~PrefixCache() {
  for (const auto& [beginning, entry] : entries_) pool_->release(entry.block);
}

std::optional<PrefixCache::Found> PrefixCache::find(Beginning after, std::span<const int32_t> tokens) {
  const auto known = by_key_.find(key_of(after, tokens));
  if (known == by_key_.end()) return std::nullopt;
  Entry& entry = entries_.at(known->second);
  entry.last_used = ++clock_;
  return Found{known->second, entry.block};
}

PrefixCache::Beginning PrefixCache::add(Beginning after, std::span<const int32_t> tokens, int32_t block) {
  const Beginning made = ++n_made_;
  std::string key = key_of(after, tokens);
  const bool is_new = by_key_.emplace(key, made).second;
  TANDEM_CHECK(is_new && (after == kEmpty || entries_.contains(after)));
  entries_.emplace(made, Entry{after, block, 0, ++clock_, std::move(key)});
  pool_->share(block);
  if (after != kEmpty) ++entries_.at(after).n_after;
  return made;
}

// A sequence that uses a block also uses all blocks before it, so every unused block can be released, the
// last ones first.
int64_t PrefixCache::n_unused() const {
  return std::count_if(entries_.begin(), entries_.end(), [&](const auto& e) { return is_unused(e.second); });
}

bool PrefixCache::make_free(int64_t n) {
  while (pool_->n_free() < n) {
    std::vector<std::pair<uint64_t, Beginning>> ends;  // by age
    for (const auto& [beginning, entry] : entries_) {
      if (entry.n_after == 0 && is_unused(entry)) ends.emplace_back(entry.last_used, beginning);
    }
    if (ends.empty()) return false;
    std::sort(ends.begin(), ends.end());
    // Releases more than needed: the search costs more than the releases.
    const int64_t enough = n + pool_->n_blocks() / 32;
    for (const auto& [age, beginning] : ends) {
      if (pool_->n_free() >= enough) break;
      forget(beginning);
    }
  }
  return true;
}

void PrefixCache::forget(Beginning b) {
  const auto entry = entries_.find(b);
  if (entry->second.before != kEmpty) --entries_.at(entry->second.before).n_after;
  by_key_.erase(entry->second.key);
  pool_->release(entry->second.block);
  entries_.erase(entry);
}

}  // namespace tandem
