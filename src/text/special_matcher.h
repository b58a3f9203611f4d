// SpecialMatcher: finds special tokens in a text, leftmost first, then longest.
// Immutable; its views of the tokens' texts must outlive it. Throws only bad_alloc.
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

  // Finds the first match at or after `from`.
  Match find(std::string_view text, size_t from) const;
  bool empty() const { return entries_.empty(); }

 private:
  std::vector<Entry> entries_;            // sorted by text; the lowest id of equal texts
  std::array<uint32_t, 257> first_ = {};  // entries that start with byte b: first_[b] .. first_[b + 1]
};

}  // namespace tandem
