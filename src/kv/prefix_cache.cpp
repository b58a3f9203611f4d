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
  for (auto& [beginning, entry] : entries_) {
    forget_state(entry);
    pool_->release(entry.block);
  }
}

std::optional<PrefixCache::Found> PrefixCache::find(Beginning after, std::span<const int32_t> tokens) {
  const auto known = by_key_.find(key_of(after, tokens));
  if (known == by_key_.end()) return std::nullopt;
  Entry& entry = entries_.at(known->second);
  entry.last_used = ++clock_;
  return Found{known->second, entry.block, entry.state};
}

PrefixCache::Beginning PrefixCache::add(Beginning after, std::span<const int32_t> tokens, int32_t block) {
  const Beginning made = ++n_made_;
  std::string key = key_of(after, tokens);
  const bool is_new = by_key_.emplace(key, made).second;
  TANDEM_CHECK(is_new && (after == kEmpty || entries_.contains(after)));
  entries_.emplace(made, Entry{after, block, 0, ++clock_, std::move(key), std::nullopt});
  pool_->share(block);
  if (after != kEmpty) ++entries_.at(after).n_after;
  return made;
}

void PrefixCache::add_state(Beginning after, int32_t slot, bool is_needed) {
  Entry& entry = entries_.at(after);
  if (entry.state || max_states_ == 0) return;
  if (n_states_ == max_states_) {
    if (!is_needed) return;
    Entry* oldest = nullptr;
    for (auto& [beginning, e] : entries_) {
      if (e.state && (!oldest || e.last_used < oldest->last_used)) oldest = &e;
    }
    forget_state(*oldest);
  }
  states_->share(slot);
  entry.state = slot;
  ++n_states_;
}

void PrefixCache::forget_state(Entry& entry) {
  if (!entry.state) return;
  states_->release(*entry.state);
  entry.state.reset();
  --n_states_;
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
  forget_state(entry->second);
  by_key_.erase(entry->second.key);
  pool_->release(entry->second.block);
  entries_.erase(entry);
}

}  // namespace tandem
