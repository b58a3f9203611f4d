#include "ggml-cuda/handed_bytes.h"

#include <algorithm>

namespace tandem::cuda {

MadeBytes HandedBytes::made(const LaunchContext& context, int64_t n) const {
  MadeBytes made;
  if (!is_handed(n) || !any_wanted()) return made;
  made.counters = context.counters;
  for (int e = 0; e < kEncodings; ++e) {
    if (!wanted[static_cast<size_t>(e)]) continue;
    const Activations to = at(context, e);
    made.q[e] = const_cast<std::byte*>(to.q);
    made.meta[e] = const_cast<BlockMeta*>(to.meta);
  }
  return made;
}

namespace {

// The op that makes the bytes of what `reader`, op i, reads: the one before it, or the one before that.
struct Maker {
  BytesMaker* maker = nullptr;  // null: none can
  size_t op = 0;
};
Maker maker_of(std::span<const CompiledOpPtr> ops, size_t i, const BytesReader& reader) {
  for (size_t back = 1; back <= std::min<size_t>(2, i); ++back) {
    BytesMaker* maker = ops[i - back]->bytes_maker();
    if (maker && maker->tensor != kNoTensor && maker->tensor == reader.tensor) return {maker, i - back};
  }
  return {};
}

}  // namespace

std::vector<int64_t> count_reads(const Graph& graph) {
  std::vector<int64_t> counts(graph.tensors.size());
  const auto count_of = [&](TensorId id) -> int64_t& { return counts[static_cast<size_t>(graph.tensor(id).storage)]; };
  for (const Node& node : graph.nodes) {
    for (const TensorId id : inputs_of(node.op)) ++count_of(id);
  }
  for (const TensorId id : {graph.logits, graph.top, graph.hidden}) {
    if (id != kNoTensor) count_of(id) = INT64_MAX;
  }
  for (const TensorId id : graph.sent) count_of(id) = INT64_MAX;
  for (size_t id = 0; id < graph.tensors.size(); ++id) {
    if (graph.tensors[id].is_view) count_of(static_cast<TensorId>(id)) = INT64_MAX;
  }
  return counts;
}

int64_t count_reads(const CompileContext& context, TensorId tensor, std::span<const int32_t> nodes) {
  int64_t n = 0;
  for (const int32_t node : nodes) {
    for (const TensorId id : inputs_of(context.node(node).op)) n += context.tensor(id).storage == context.tensor(tensor).storage;
  }
  return n;
}

std::array<size_t, 2> hand_bytes(std::span<const CompiledOpPtr> ops) {
  std::array<size_t, 2> most{};
  size_t first_free[2] = {};  // the first op that may write to a slot: behind those that read it
  for (size_t i = 0; i < ops.size(); ++i) {
    BytesReader* reader = ops[i]->bytes_reader();
    if (!reader || !(reader->bytes.any_wanted() || reader->bytes.narrow)) continue;
    const Maker found = maker_of(ops, i, *reader);
    if (!found.maker) continue;
    HandedBytes& made = found.maker->bytes;
    HandedBytes& read = reader->bytes;
    if (made.slot < 0) {
      if (std::max(read.few, found.maker->few) >= read.max_n) read.narrow.reset();
      if (!read.any_wanted() && !read.narrow) continue;
      const int slot = first_free[0] <= found.op ? 0 : 1;
      if (first_free[slot] > found.op) continue;
      made = read;
      made.slot = slot;
      made.few = std::max(read.few, found.maker->few);
    } else {  // another op reads them too
      for (size_t e = 0; e < kEncodings; ++e) made.wanted[e] |= read.wanted[e];
      if (read.narrow != made.narrow || read.few > made.few || read.max_n != made.max_n) read.narrow.reset();
    }
    read.slot = made.slot;
    read.few = made.few;
    if (read.narrow) made.n_narrow_reads += reader->n_reads;
    first_free[made.slot] = i + 1;
    most[static_cast<size_t>(made.slot)] = std::max(most[static_cast<size_t>(made.slot)], made.n_bytes());
  }
  return most;
}

}  // namespace tandem::cuda
