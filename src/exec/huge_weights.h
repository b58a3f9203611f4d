// HugeWeights: weights that the CPU computes with where a file is mapped move to huge pages once texts are long enough to pay for
// it. Pages of a file have 4 KiB, and the CPU reads huge ones faster, in virtual machines by a fifth, because a page walk goes
// through two tables there. Moving a byte takes as long as reading it a dozen times gains, so it begins after so many steps and
// is spread over others. Weights stay at their addresses, and other threads may read them meanwhile.
//
// One thread.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "exec/partition.h"
#include "exec/pinned_weights.h"
#include "graph/graph.h"

namespace tandem {

class HugeWeights {
 public:
  // `at_once`: all in the first step. Nothing more is moved once `hold` has refused.
  HugeWeights(HoldBytes hold, bool at_once) : hold_(std::move(hold)), at_once_(at_once) {}

  // A step of few tokens is about to run; the first one's graph tells what the host reads.
  void begin_step(const Graph& graph, const Partition& partition);

  size_t n_bytes() const { return n_bytes_; }  // moved
  bool is_done() const { return refused_ || (begun_ && n_bytes_ == n_all_bytes_); }

  static constexpr int64_t kFewTokens = 16;  // of a step that reads weights as fast as memory gives them
  static constexpr int64_t kReadsBefore = 16;
  // Of all bytes, the part that is moved in a step, and what it is at least.
  static constexpr size_t kStepParts = 8, kLeastBytes = size_t{16} << 20;

 private:
  // Adjacent weights of which a token reads the same share.
  struct Run {
    std::span<const std::byte> bytes;
    double share;
    size_t n_moved = 0;
  };
  void find_runs(const Graph& graph, const Partition& partition);

  HoldBytes hold_;
  bool at_once_;
  std::vector<Run> runs_;
  int64_t n_steps_ = 0;
  size_t n_bytes_ = 0, n_all_bytes_ = 0;
  bool begun_ = false, refused_ = false;
};

// Whether the system grants huge pages to who asks for them.
bool grants_huge_pages();

}  // namespace tandem
