// SpecialMatcher: finds the special tokens that stand in a text, leftmost first and longest at one place.
// Immutable; holds views of the texts it was given, which must outlive it. Throws nothing but bad_alloc.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tandem {

class SpecialMatcher {
 public:
  struct Entry {
    std::string_view text;
    int32_t id;
  };
  struct Match {
    size_t position;  // == text.size() when nothing was found
    size_t n_bytes;
    int32_t id;
  };

  SpecialMatcher() = default;
  explicit SpecialMatcher(std::vector<Entry> entries);

  // The first match at or after `from`.
  Match find(std::string_view text, size_t from) const;
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;            // sorted by text; of equal texts the lowest id
  std::array<uint32_t, 257> first_ = {};  // entries that start with byte b: first_[b] .. first_[b + 1]
};

}  // namespace tandem
