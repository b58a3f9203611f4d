// StringIndex: text -> id, for hundreds of thousands of short strings that are looked up a few times per byte
// of input. Open addressing, 24 bytes per entry. Holds views: the strings must outlive it and stay in place.
// Concurrent lookups are fine. The hash is seeded randomly once per process, so that files cannot be crafted
// to collide.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/random_seed.h"

namespace tandem {

class StringIndex {
 public:
  static constexpr int32_t kAbsent = -1;

  explicit StringIndex(size_t n_expected = 0) : seed_(process_seed()) { rehash(n_expected); }

  int32_t find(std::string_view text) const {
    const uint32_t hash = hash_of(text);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      const Bucket& bucket = buckets_[i];
      if (bucket.id == kAbsent) return kAbsent;
      if (bucket.hash == hash && std::string_view(bucket.data, bucket.size) == text) return bucket.id;
    }
  }

  // Returns the id already there, or adds `id` (not negative) and returns it.
  int32_t insert(std::string_view text, int32_t id) {
    if ((n_ + 1) * 2 > buckets_.size()) rehash(n_ * 2 + 1);
    const uint32_t hash = hash_of(text);
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      Bucket& bucket = buckets_[i];
      if (bucket.id == kAbsent) {
        bucket = {text.data(), static_cast<uint32_t>(text.size()), hash, id};
        ++n_;
        return id;
      }
      if (bucket.hash == hash && std::string_view(bucket.data, bucket.size) == text) return bucket.id;
    }
  }

 private:
  struct Bucket {
    const char* data = nullptr;
    uint32_t size = 0;
    uint32_t hash = 0;
    int32_t id = kAbsent;
  };

  static uint64_t process_seed() {
    static const uint64_t seed = random_seed();
    return seed;
  }

  uint32_t hash_of(std::string_view text) const {
    constexpr uint64_t kMix = 0x9e3779b97f4a7c15u;
    uint64_t h = seed_ ^ text.size() * kMix;
    const char* p = text.data();
    size_t left = text.size();
    for (; left >= 8; left -= 8, p += 8) {
      uint64_t word;
      std::memcpy(&word, p, 8);
      h = (h ^ word) * kMix;
      h ^= h >> 29;
    }
    uint64_t word = 0;
    if (left > 0) std::memcpy(&word, p, left);
    h = (h ^ word) * kMix;
    h ^= h >> 32;
    return static_cast<uint32_t>(h * kMix >> 32);
  }

  void rehash(size_t n_expected) {
    std::vector<Bucket> old = std::move(buckets_);
    buckets_.assign(std::bit_ceil(n_expected * 2 + 16), Bucket{});
    mask_ = buckets_.size() - 1;
    for (const Bucket& bucket : old) {
      if (bucket.id == kAbsent) continue;
      size_t i = bucket.hash & mask_;
      while (buckets_[i].id != kAbsent) i = (i + 1) & mask_;
      buckets_[i] = bucket;
    }
  }

  std::vector<Bucket> buckets_;  // a power of two, at most half full
  size_t mask_ = 0;
  size_t n_ = 0;
  uint64_t seed_;
};

}  // namespace tandem
