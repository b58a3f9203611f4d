// The merge loop shared by SPM and BPE: in a chain of symbols the best adjacent pair is merged into one
// symbol, until no pair can merge. O(n log n) for n symbols and 8 bytes per queued pair, so a megabyte
// without a space stays fast.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string_view>
#include <vector>

#include "text/string_index.h"

namespace tandem {

// The result of merging a pair of symbols. Lowest priority value first; leftmost on ties.
struct PairMerge {
  static constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
  uint32_t priority = kNever;
  int32_t symbol = 0;
};

struct MergeNode {
  uint32_t start;       // first byte; it ends where the next node starts
  int32_t symbol;       // meaning defined by the caller
  int32_t prev, next;   // -1 at the ends
  PairMerge pair = {};  // with the next node; kNever after this node was merged into its left neighbour
};

// A piece of text as a chain of nodes. One thread; reused for piece after piece, to avoid allocations.
class MergeChain {
 public:
  void clear() { nodes_.clear(); }
  bool empty() const { return nodes_.empty(); }

  void append(size_t start, int32_t symbol) {
    const auto i = static_cast<int32_t>(nodes_.size());
    if (i > 0) nodes_.back().next = i;
    nodes_.push_back({static_cast<uint32_t>(start), symbol, i - 1, -1});
  }

  // find_pair(const MergeNode& left, const MergeNode& right, size_t end) -> PairMerge; `end` is the end of
  // right. The piece has n_bytes.
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
      if (left.pair.priority != best >> 32) continue;  // stale: one of the two has changed
      MergeNode& right = at(left.next);
      left.symbol = left.pair.symbol;
      left.next = right.next;
      right.pair = {};
      if (left.next >= 0) at(left.next).prev = i;
      if (left.prev >= 0) look_up_and_queue(at(left.prev), n_bytes, find_pair);
      look_up_and_queue(left, n_bytes, find_pair);
    }
  }

  // Calls visit(symbol, start, end) for each remaining node, in order.
  template <class Visit>
  void for_each(size_t n_bytes, const Visit& visit) const {
    for (int32_t i = nodes_.empty() ? -1 : 0; i >= 0; i = nodes_[i].next) {
      const MergeNode& node = nodes_[i];
      visit(node.symbol, size_t{node.start}, end_of(node, n_bytes));
    }
  }

 private:
  MergeNode& at(int32_t i) { return nodes_[i]; }
  size_t end_of(const MergeNode& node, size_t n_bytes) const {
    return node.next >= 0 ? nodes_[node.next].start : n_bytes;
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
  std::vector<uint64_t> waiting_;  // a heap of priority << 32 | node; a wrong priority marks a stale entry
};

// Remembers where the ids of earlier pieces are in the output, because words repeat. Its views must outlive
// it.
class PieceCache {
 public:
  // Appends the ids of an earlier equal `piece`; false if it is new.
  bool append_known(std::string_view piece, std::vector<int32_t>& ids) const {
    const int32_t known = index_.find(piece);
    if (known == StringIndex::kAbsent) return false;
    const Span span = spans_[known];
    for (size_t i = span.begin; i < span.end; ++i) ids.push_back(ids[i]);
    return true;
  }

  // Records that ids[begin..end) are those of `piece`.
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
