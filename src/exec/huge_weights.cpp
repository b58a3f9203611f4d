#include "exec/huge_weights.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <variant>

namespace tandem {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kGap = size_t{64} << 10;  // between weights that are moved together, which others fill

// The share of a weight that a token reads; 0: a few rows only.
double share_read(const Graph& graph, TensorId id) {
  double share = 0;
  for (const Node& node : graph.nodes) {
    const InputList inputs = inputs_of(node.op);
    if (std::find(inputs.begin(), inputs.end(), id) == inputs.end() ||
        std::holds_alternative<EmbedOp>(node.op))
      continue;
    const auto* mixture = std::get_if<MoeFfnOp>(&node.op);
    const bool some = mixture != nullptr && graph.tensor(id).weight->n_mats > 1 && mixture->n_expert > 0;
    share = std::max(
        share, some ? static_cast<double>(mixture->n_used) / static_cast<double>(mixture->n_expert) : 1.0);
  }
  return share;
}

}  // namespace

void HugeWeights::find_runs(const Graph& graph, const Partition& partition) {
  std::map<const std::byte*, Run> by_address;
  for (const TensorId id : partition.weights[0]) {
    const Weight& weight = *graph.tensor(id).weight;
    const double share = share_read(graph, id);
    if (!weight.in_file || share <= 0) continue;
    by_address.insert({weight.data, {{weight.data, weight.n_bytes()}, share}});
  }
  for (const auto& [address, run] : by_address) {
    Run* last = runs_.empty() ? nullptr : &runs_.back();
    const auto gap = last ? address - (last->bytes.data() + last->bytes.size()) : 0;
    if (last && last->share == run.share && gap >= 0 && static_cast<size_t>(gap) <= kGap) {
      last->bytes = {last->bytes.data(),
                     static_cast<size_t>(address - last->bytes.data()) + run.bytes.size()};
    } else {
      runs_.push_back(run);
    }
  }
  for (const Run& run : runs_) n_all_bytes_ += run.bytes.size();
}

void HugeWeights::begin_step(const Graph& graph, const Partition& partition) {
  if (!std::exchange(begun_, true)) find_runs(graph, partition);
  ++n_steps_;
  size_t left = at_once_ ? n_all_bytes_ : std::max(kLeastBytes, n_all_bytes_ / kStepParts);
  for (Run& run : runs_) {
    if (!at_once_ && static_cast<double>(n_steps_) * run.share <= static_cast<double>(kReadsBefore)) continue;
    while (!refused_ && left > 0 && run.n_moved < run.bytes.size()) {
      const std::byte* from = run.bytes.data() + run.n_moved;
      size_t n_bytes = std::min(run.bytes.size() - run.n_moved, std::max(left, kHugePage));
      // Up to the end of a huge page, if the run goes on behind it.
      const size_t behind = (reinterpret_cast<uintptr_t>(from) + n_bytes) % kHugePage;
      if (run.n_moved + n_bytes < run.bytes.size() && behind < n_bytes) n_bytes -= behind;
      refused_ = !hold_({from, n_bytes});
      if (refused_) break;
      run.n_moved += n_bytes;
      n_bytes_ += n_bytes;
      left -= std::min(left, n_bytes);
    }
  }
}

bool grants_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

}  // namespace tandem
