// Parts: a prefill step whose tokens go through the layers in a few parts, so that sums over devices go over links while the
// devices compute (as DeepSeek-V3's report, arXiv:2412.19437, does with two micro-batches). Parts take turns between sums:
//
//   devices   part 1 up to sum 1 | part 2 up to sum 1 | part 1 up to sum 2 | part 2 up to sum 2 | ...
//   links                        |   sum 1 of part 1  |   sum 1 of part 2  |   sum 2 of part 1  | ...
//
// so a step takes as long as the devices compute or as the links are busy, whichever is longer, and not both; in one piece
// each sum is waited for. What it costs: each part reads the weights, so few tokens and decoding stay whole.
//
// Attention computes less than the feed-forward part, and the sums behind both are as large. Where links take about as long as
// computing, two parts hide too little: devices wait for the sums behind attention, links for the feed-forward parts. So of
// three parts or more the later half (the smaller one) is one sum behind, and turns with attention (A) and a feed-forward
// part (F) alternate. Of three:
//
//   devices   A1  F3'  A2  F1  A3  F2 | A1' F3  A2' ...        (' of another layer)
//
// Several sums are then on their way at once. Devices wait for one only where they need it, and all of them begin and end sums
// in the same order.
//
// Which number of parts is best depends on the machine: the planner takes the one with the shortest predicted time
// (plan/overlap.h). Milliseconds of a step of 512 tokens through Llama 3.1 70B, computed from 400 TFLOP/s of each GPU, links
// of so many bytes per second in both directions together, and the orders above (over PCIe what a device has goes to the host
// and the sum back; over NVLink it is NCCL's ring and 12 us). Reading weights is not counted. "chunks": products whose sums
// begin as soon as a chunk of their rows is there need no parts, but hide a sum behind one product alone, 8% and 27% of a
// layer's operations.
//
//   links, GPUs          compute  links   whole  chunks  2 parts  3 parts  4 parts  6 parts
//   PCIe 25 GB/s, 4         43.8  214.7   258.6   245.0    214.8    214.8    215.0    214.8
//   PCIe 64 GB/s, 2         87.6   83.9   171.5   144.4    114.2     93.4     91.0     87.8
//   PCIe 64 GB/s, 8         21.9   83.9   105.8    99.0     83.9     83.9     84.0     83.9
//   NVLink 360 GB/s, 2      87.6    9.4    97.0    88.8     87.7     87.6     87.6     87.6
//   NVLink 360 GB/s, 8      21.9   15.0    36.9    30.1     26.5     22.0     22.0     24.6
//
// Attention of a part reads what those before it wrote to the cache of the same layer, a recurrence goes on in the state that
// they left. Rows of the tokens that are needed whole, by the output head or another rank, are made in place: tensors of a part
// may be rows of a tensor that is there for all.
#pragma once

#include <optional>
#include <vector>

#include "exec/placement.h"

namespace tandem {

inline constexpr int64_t kMaxParts = 8;

// Of a step's tokens, the rows that a tensor has or a node computes: all, or those of a part.
enum class StepRows : uint8_t { all };
inline constexpr size_t kStepRows = 1 + kMaxParts;
constexpr StepRows rows_of_part(size_t part) {
  return static_cast<StepRows>(1 + part);
}
constexpr size_t part_index(StepRows rows) {
  return static_cast<size_t>(rows) - 1;
}

struct StepParts {
  struct View {
    TensorId whole = kNoTensor;  // in whose memory the tensor lies; kNoTensor: it has its own
    size_t offset = 0;           // bytes
  };
  size_t count = 0;    // 0: the step is whole
  int64_t n_each = 0;  // tokens of each, the last may have fewer. A short step leaves parts empty
  std::vector<StepRows> rows = {};    // [TensorId]; empty: all
  std::vector<View> views = {};       // [TensorId]; empty: none
  std::vector<TensorId> states = {};  // [part] its input `states`, but for the first part; kNoTensor: none

  bool on() const { return count > 0; }
  StepRows rows_of(TensorId id) const { return rows.empty() ? StepRows::all : rows[static_cast<size_t>(id)]; }
  View view_of(TensorId id) const { return views.empty() ? View{} : views[static_cast<size_t>(id)]; }
  // Of a node with a tensor of a part, which it computes.
  StepRows rows_of(const Node& node) const;
  // How many of a step's tokens they are, and how many are before them.
  int64_t n_tokens(StepRows which, int64_t n_step) const;
  int64_t n_before(StepRows which) const;
  // How many sums the host leaves to go on when it starts another one. Over host memory a sum is complete only once the host
  // has added; with many parts it would keep devices waiting if it did so at once.
  size_t sums_ahead() const { return count < 4 ? 0 : 1; }
};

struct PartedGraph {
  Graph graph;
  StepParts parts;
};

// The tokens of each of n_parts in steps of at most max_tokens, but for the last, which may have fewer, or there may be fewer
// parts; 0 if there would be no second one.
int64_t tokens_of_part(int64_t max_tokens, int64_t n_parts);

// Whether a step of a graph for max_tokens goes in parts, if that has some.
bool goes_in_parts(const Placement& placement, int64_t max_tokens, int64_t n_tokens);

// A prefill graph whose layers are divided over devices (tensor_parallel.h), in parts. None where the placement wants none of
// its steps so, or that makes no sense: a graph for few tokens, without sums over devices, or with streamed weights, which
// keep buses busy anyway.
std::optional<PartedGraph> parted_graph(const Graph& divided, const Placement& placement);

}  // namespace tandem
