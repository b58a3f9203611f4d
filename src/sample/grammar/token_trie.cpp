#include "sample/grammar/token_trie.h"

#include <algorithm>

namespace tandem {

TokenTrie::TokenTrie(int32_t n_vocab, const std::function<std::string(int32_t)>& piece,
                     std::span<const int32_t> left_out) {
  starts_.push_back(0);
  std::vector<int32_t> order;
  for (int32_t token = 0; token < n_vocab; ++token) {
    const bool out = std::find(left_out.begin(), left_out.end(), token) != left_out.end();
    const std::string text = out ? std::string() : piece(token);
    if (text.size() <= kMaxDepth) texts_ += text;
    if (texts_.size() > starts_.back()) order.push_back(token);
    starts_.push_back(texts_.size());
  }
  std::sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    const int difference = text(a).compare(text(b));
    return difference != 0 ? difference < 0 : a < b;
  });
  std::vector<uint32_t> open;  // the path from the root to the last node
  std::string_view before;
  for (const int32_t token : order) {
    add(token, text(token), before, open);
    before = text(token);
  }
  for (const uint32_t node : open) nodes_[node].end = static_cast<uint32_t>(nodes_.size());
}

// Adds tokens in order of their texts. A token with the same text as the one before gets its own last node.
void TokenTrie::add(int32_t token, std::string_view text, std::string_view before,
                    std::vector<uint32_t>& open) {
  size_t common = 0;
  while (common < text.size() && common < before.size() && text[common] == before[common]) ++common;
  common = std::min(common, text.size() - 1);
  while (open.size() > common) {
    nodes_[open.back()].end = static_cast<uint32_t>(nodes_.size());
    open.pop_back();
  }
  for (size_t i = common; i < text.size(); ++i) {
    open.push_back(static_cast<uint32_t>(nodes_.size()));
    nodes_.push_back({0, -1, static_cast<uint16_t>(i + 1), static_cast<uint8_t>(text[i])});
  }
  nodes_.back().token = token;
  depth_ = std::max(depth_, text.size());
}

}  // namespace tandem
