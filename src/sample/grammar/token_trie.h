// TokenTrie: the texts of a vocabulary as a tree of bytes, so that common prefixes of tokens are checked
// once. Flat, in depth-first order: 12 bytes per node. Immutable; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

class TokenTrie {
 public:
  struct Node {
    uint32_t end;    // index of the first node outside this subtree
    int32_t token;   // token that ends here, or -1
    uint16_t depth;  // 1: first byte of a token
    uint8_t byte;
  };
  static constexpr size_t kMaxDepth = 4096;  // bytes; longer tokens are left out

  // `piece` returns the bytes of a token, "" for control tokens. Tokens without text and those in `left_out`
  // are not in the tree.
  TokenTrie(int32_t n_vocab, const std::function<std::string(int32_t)>& piece,
            std::span<const int32_t> left_out);

  int32_t n_vocab() const { return static_cast<int32_t>(starts_.size()) - 1; }
  std::span<const Node> nodes() const { return nodes_; }
  // Length of the longest token in bytes.
  size_t depth() const { return depth_; }
  // Returns the bytes of a token; empty for tokens that are not in the tree.
  std::string_view text(int32_t token) const {
    const auto i = static_cast<size_t>(token);
    return {texts_.data() + starts_[i], starts_[i + 1] - starts_[i]};
  }

 private:
  void add(int32_t token, std::string_view text, std::string_view before, std::vector<uint32_t>& open);

  std::string texts_;
  std::vector<size_t> starts_;  // [n_vocab + 1]
  std::vector<Node> nodes_;
  size_t depth_ = 0;
};

}  // namespace tandem
