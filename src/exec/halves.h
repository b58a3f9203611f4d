// Halves: a prefill step whose tokens go through the layers in two halves, so that sums over devices go over links while
// the devices compute (as DeepSeek-V3's report, arXiv:2412.19437, does with two micro-batches). The nodes of both are
// interleaved between sums:
//
//   devices   first up to sum 1 | second up to sum 1 | first up to sum 2 | second up to sum 2 | ...
//   links                       |    sum 1 of first  | sum 1 of second   |   sum 2 of first   | ...
//
// so a step takes as long as the devices compute or as the links are busy, whichever is longer, and not both; without
// halves each sum is waited for. What it costs: weights are read twice, so few tokens and decoding stay whole.
//
// What was compared: products whose sums begin as soon as a chunk of their rows is there ("chunks") need no halves, but hide a
// sum behind one product alone, 8% and 27% of a layer's operations in Llama 3.1 70B. Milliseconds of a step of 512 tokens
// through it, computed from 400 TFLOP/s of each GPU, links of so many bytes per second in both directions together, and the
// orders above (over PCIe a part goes to the host and the sum back; over NVLink it is NCCL's ring and 12 us):
//
//   links, GPUs          compute  links   whole  chunks  halves
//   PCIe 25 GB/s, 4         43.8  214.7   258.6   245.0   214.8
//   PCIe 64 GB/s, 2         87.6   83.9   171.5   144.4   114.2
//   PCIe 64 GB/s, 8         21.9   83.9   105.8    99.0    83.9
//   NVLink 360 GB/s, 2      87.6    9.4    97.0    88.8    87.7
//   NVLink 360 GB/s, 8      21.9   15.0    36.9    30.1    26.5
//
// Where links take about as long as computing, halves cannot hide all: attention computes less than the feed-forward part,
// and the sums behind both are as large.
//
// Attention of the second half reads what the first one wrote to the cache of the same layer, a recurrence goes on in the
// state that it left. Rows of the tokens that are needed whole, by the output head or another rank, are made in place:
// tensors of a half may be rows of a tensor that is there for both.
#pragma once

#include <optional>
#include <vector>

#include "exec/placement.h"

namespace tandem {

// Of a step's tokens, the rows that a tensor has or a node computes.
enum class StepRows : uint8_t { all, first, second };
inline constexpr size_t kStepRows = 3;

struct Halves {
  struct View {
    TensorId whole = kNoTensor;  // in whose memory the tensor lies; kNoTensor: it has its own
    size_t offset = 0;           // bytes
  };
  int64_t n_first = 0;              // tokens of the first half; 0: the step is whole
  std::vector<StepRows> rows = {};  // [TensorId]; empty: all
  std::vector<View> views = {};     // [TensorId]; empty: none
  TensorId states = kNoTensor;      // the input `states` of the second half

  bool on() const { return n_first > 0; }
  StepRows rows_of(TensorId id) const { return rows.empty() ? StepRows::all : rows[static_cast<size_t>(id)]; }
  View view_of(TensorId id) const { return views.empty() ? View{} : views[static_cast<size_t>(id)]; }
  // Of a node with a tensor of a half, which it computes.
  StepRows rows_of(const Node& node) const;
  // How many of a step's tokens they are, and how many are before them.
  int64_t n_tokens(StepRows which, int64_t n_step) const;
  int64_t n_before(StepRows which) const { return which == StepRows::second ? n_first : 0; }
  // How many sums the host leaves to go on when it starts another one.
  size_t sums_ahead() const { return 0; }
};

struct HalvedGraph {
  Graph graph;
  Halves halves;
};

// The tokens of the first half in steps of at most max_tokens; 0 if these are too few to be divided.
int64_t first_half(int64_t max_tokens);

// Whether a step of a graph for max_tokens goes in halves, if that has some.
bool goes_in_halves(const Placement& placement, int64_t max_tokens, int64_t n_tokens);

// A prefill graph whose layers are divided over devices (tensor_parallel.h), in halves. None where the placement wants none of
// its steps so, or that makes no sense: a graph for few tokens, without sums over devices, or with streamed weights, which
// keep buses busy anyway.
std::optional<HalvedGraph> halved_graph(const Graph& divided, const Placement& placement);

}  // namespace tandem
