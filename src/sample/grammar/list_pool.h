// Interned sorted lists of numbers: equal lists have the same id. Ids count from 0; list 0 is the empty list.
// One thread; throws only bad_alloc.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tandem {

class ListPool {
 public:
  ListPool() { clear(); }

  size_t size() const { return starts_.size() - 1; }
  size_t n_bytes() const {
    return values_.size() * sizeof values_[0] + (starts_.size() + buckets_.size()) * sizeof buckets_[0];
  }
  // Valid until the next intern().
  std::span<const uint64_t> operator[](uint32_t id) const {
    return {values_.data() + starts_[id], starts_[id + 1] - starts_[id]};
  }

  // `list` is sorted and does not point into the pool.
  uint32_t intern(std::span<const uint64_t> list) {
    if (2 * size() >= buckets_.size()) grow();
    size_t bucket = hash(list) & (buckets_.size() - 1);
    while (buckets_[bucket] != kFree) {
      const auto other = (*this)[buckets_[bucket]];
      if (std::equal(list.begin(), list.end(), other.begin(), other.end())) return buckets_[bucket];
      bucket = (bucket + 1) & (buckets_.size() - 1);
    }
    buckets_[bucket] = static_cast<uint32_t>(size());
    values_.insert(values_.end(), list.begin(), list.end());
    starts_.push_back(static_cast<uint32_t>(values_.size()));
    return buckets_[bucket];
  }

  void clear() {
    values_.clear();
    starts_.assign(1, 0);
    buckets_.assign(64, kFree);
    intern({});
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;

  static uint64_t hash(std::span<const uint64_t> list) {
    uint64_t h = list.size();
    for (const uint64_t value : list) {
      h = (h ^ value) * 0x9e3779b97f4a7c15u;
      h ^= h >> 29;
    }
    return h ^ (h >> 32);
  }

  void grow() {
    buckets_.assign(2 * buckets_.size(), kFree);
    for (uint32_t id = 0; id < size(); ++id) {
      size_t bucket = hash((*this)[id]) & (buckets_.size() - 1);
      while (buckets_[bucket] != kFree) bucket = (bucket + 1) & (buckets_.size() - 1);
      buckets_[bucket] = id;
    }
  }

  std::vector<uint64_t> values_;
  std::vector<uint32_t> starts_;   // [size() + 1]
  std::vector<uint32_t> buckets_;  // open addressing, a power of two
};

}  // namespace tandem
