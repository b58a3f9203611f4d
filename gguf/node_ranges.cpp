#include "gguf/node_ranges.h"

namespace tandem {
namespace {

// Smaller ones have few pages, and each range is a mapping of its own for the system.
constexpr uint64_t kLeastBytes = 256 << 10;

}  // namespace

std::vector<NodeRange> node_ranges(std::span<const TensorInfo> tensors, int part, const NodeShares& nodes) {
  std::vector<NodeRange> ranges;
  for (const TensorInfo& t : tensors) {
    const int64_t n_rows = t.dims[1];
    if (t.part != part || t.n_rows() != n_rows || t.n_bytes < kLeastBytes) continue;
    const uint64_t row_bytes = t.n_bytes / static_cast<uint64_t>(n_rows);
    for (size_t node = 0; node < nodes.size(); ++node) {
      const auto begin = static_cast<uint64_t>(nodes.begin(node, n_rows));
      const auto end = static_cast<uint64_t>(nodes.begin(node + 1, n_rows));
      ranges.push_back({t.offset + begin * row_bytes, (end - begin) * row_bytes, nodes.node(node).id});
    }
  }
  return ranges;
}

}  // namespace tandem
