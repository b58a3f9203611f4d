#include "ggml-cuda/handed_bytes.h"

#include <algorithm>

namespace tandem::cuda {

MadeBytes HandedBytes::made(const LaunchContext& context, int64_t n) const {
  MadeBytes made;
  if (!is_handed(n)) return made;
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

size_t hand_bytes(std::span<const CompiledOpPtr> ops) {
  size_t most = 0;
  size_t first_free[2] = {};  // the first op that may write to a slot: behind those that read it
  for (size_t i = 0; i < ops.size(); ++i) {
    BytesReader* reader = ops[i]->bytes_reader();
    if (!reader || (!reader->bytes.wanted[0] && !reader->bytes.wanted[1])) continue;
    const Maker found = maker_of(ops, i, *reader);
    if (!found.maker) continue;
    HandedBytes& made = found.maker->bytes;
    if (made.slot < 0) {
      const int slot = first_free[0] <= found.op ? 0 : 1;
      if (first_free[slot] > found.op) continue;
      made = reader->bytes;
      made.slot = slot;
    } else {  // another op reads them too
      for (size_t e = 0; e < kEncodings; ++e) made.wanted[e] |= reader->bytes.wanted[e];
    }
    reader->bytes.slot = made.slot;
    first_free[made.slot] = i + 1;
    most = std::max(most, made.n_bytes());
  }
  return most;
}

}  // namespace tandem::cuda
