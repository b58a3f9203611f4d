// The merging that SPM and BPE share: a chain of symbols, of which the best neighbouring pair becomes one
// symbol, until no pair can. O(n log n) for n symbols, and 8 bytes a waiting pair, so that a megabyte without
// a space stays quick.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "text/string_index.h"

namespace tandem {

// What a pair of symbols would become. The lowest priority goes first, the leftmost of equals.
struct PairMerge {
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  uint32_t priority = kNever;
  int32_t symbol = 0;
};

struct MergeNode {
  uint32_t start;       // its first byte; it ends where the next one starts
  int32_t symbol;       // what it stands for; the meaning is the caller's
  int32_t prev, next;   // -1 at the ends
  PairMerge pair = {};  // with the next one; kNever once this one is merged into its left neighbour
};

// A piece of text as a chain of nodes. One thread; reused from piece to piece so that nothing is allocated.
class MergeChain {
 public:
  void clear() { nodes_.clear(); }
  bool empty() const { return nodes_.empty(); }

  void append(size_t start, int32_t symbol) {
    const auto i = static_cast<int32_t>(nodes_.size());
    if (i > 0) nodes_.back().next = i;
    nodes_.push_back({static_cast<uint32_t>(start), symbol, i - 1, -1});
  }

  // find_pair(const MergeNode& left, const MergeNode& right, size_t end) -> PairMerge; `end` is where right
  // ends, in a piece of n_bytes.
  template <class FindPair>
  void merge_all(size_t n_bytes, const FindPair& find_pair) {
    waiting_.clear();
    for (MergeNode& node : nodes_) look_up(node, n_bytes, find_pair);
    std::make_heap(waiting_.begin(), waiting_.end(), std::greater<>());
    while (!waiting_.empty()) {
      std::pop_heap(waiting_.begin(), waiting_.end(), std::greater<>());
      const uint64_t best = waiting_.back();
      waiting_.pop_back();
      const auto i = static_cast<int32_t>(best & 0xffffffff);
      MergeNode& left = at(i);
      if (left.pair.priority != best >> 32) continue;  // one of the two has changed since
      MergeNode& right = at(left.next);
      left.symbol = left.pair.symbol;
      left.next = right.next;
      right.pair = {};
      if (left.next >= 0) at(left.next).prev = i;
      if (left.prev >= 0) look_up_and_queue(at(left.prev), n_bytes, find_pair);
      look_up_and_queue(left, n_bytes, find_pair);
    }
  }

  // visit(symbol, start, end) for what is left, in order.
  template <class Visit>
  void for_each(size_t n_bytes, const Visit& visit) const {
    for (int32_t i = nodes_.empty() ? -1 : 0; i >= 0; i = nodes_[static_cast<size_t>(i)].next) {
      const MergeNode& node = nodes_[static_cast<size_t>(i)];
      visit(node.symbol, size_t{node.start}, end_of(node, n_bytes));
    }
  }

 private:
  MergeNode& at(int32_t i) { return nodes_[static_cast<size_t>(i)]; }
  size_t end_of(const MergeNode& node, size_t n_bytes) const {
    return node.next >= 0 ? nodes_[static_cast<size_t>(node.next)].start : n_bytes;
  }

  template <class FindPair>
  void look_up(MergeNode& left, size_t n_bytes, const FindPair& find_pair) {
    left.pair = {};
    if (left.next < 0) return;
    const MergeNode& right = at(left.next);
    left.pair = find_pair(left, right, end_of(right, n_bytes));
    if (left.pair.priority == PairMerge::kNever) return;
    waiting_.push_back(uint64_t{left.pair.priority} << 32 | static_cast<uint64_t>(&left - nodes_.data()));
  }

  template <class FindPair>
  void look_up_and_queue(MergeNode& left, size_t n_bytes, const FindPair& find_pair) {
    const size_t n_before = waiting_.size();
    look_up(left, n_bytes, find_pair);
    if (waiting_.size() > n_before) std::push_heap(waiting_.begin(), waiting_.end(), std::greater<>());
  }

  std::vector<MergeNode> nodes_;
  std::vector<uint64_t> waiting_;  // a heap of priority << 32 | node; stale entries are told by the priority
};

// Words repeat: remembers where in the output the ids of a piece already stand. Views must outlive it.
class PieceCache {
 public:
  // Appends to ids what `piece` gave before; false if it is new.
  bool append_known(std::string_view piece, std::vector<int32_t>& ids) const {
    const int32_t known = index_.find(piece);
    if (known == StringIndex::kAbsent) return false;
    const Span span = spans_[static_cast<size_t>(known)];
    for (size_t i = span.begin; i < span.end; ++i) ids.push_back(ids[i]);
    return true;
  }

  // ids[begin..end) is what `piece` gives.
  void remember(std::string_view piece, size_t begin, size_t end) {
    if (piece.size() > kMaxPieceBytes || spans_.size() >= kMaxPieces) return;
    index_.insert(piece, static_cast<int32_t>(spans_.size()));
    spans_.push_back({begin, end});
  }

 private:
  static constexpr size_t kMaxPieceBytes = 64;
  static constexpr size_t kMaxPieces = 1 << 16;
  struct Span {
    size_t begin, end;
  };
  StringIndex index_;
  std::vector<Span> spans_;
};

}  // namespace tandem
