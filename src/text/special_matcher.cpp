#include "text/special_matcher.h"

#include <algorithm>

namespace tandem {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return static_cast<uint8_t>(text[i]);
}

}  // namespace

SpecialMatcher::SpecialMatcher(std::vector<Entry> entries) : entries_(std::move(entries)) {
  std::erase_if(entries_, [](const Entry& e) { return e.text.empty(); });
  std::sort(entries_.begin(), entries_.end(),
            [](const Entry& a, const Entry& b) { return a.text != b.text ? a.text < b.text : a.id < b.id; });
  const auto same = [](const Entry& a, const Entry& b) { return a.text == b.text; };
  entries_.erase(std::unique(entries_.begin(), entries_.end(), same), entries_.end());
  for (const Entry& entry : entries_) ++first_[byte_at(entry.text, 0) + 1];
  for (size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
}

// At each position, narrows the sorted entries to those that agree with the text, one byte at a time. An
// entry that ends at the current depth sorts first.
SpecialMatcher::Match SpecialMatcher::find(std::string_view text, size_t from) const {
  for (size_t start = from; start < text.size(); ++start) {
    auto low = entries_.begin() + first_[byte_at(text, start)];
    auto high = entries_.begin() + first_[byte_at(text, start) + 1];
    const Entry* longest = nullptr;
    for (size_t depth = 1; low != high; ++depth) {
      if (low->text.size() == depth) longest = &*low++;
      if (low == high || start + depth == text.size()) break;
      const uint8_t byte = byte_at(text, start + depth);
      low = std::partition_point(low, high, [&](const Entry& e) { return byte_at(e.text, depth) < byte; });
      high = std::partition_point(low, high, [&](const Entry& e) { return byte_at(e.text, depth) == byte; });
    }
    if (longest != nullptr) return {start, longest->text.size(), longest->id};
  }
  return {text.size(), 0, -1};
}

}  // namespace tandem
