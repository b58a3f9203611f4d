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

// The op that makes the bytes of what `reader`, op i, reads: the one before it, or the one before that, unless the one
// between makes bytes too. Null: none can.
BytesMaker* maker_of(std::span<const CompiledOpPtr> ops, size_t i, const BytesReader& reader) {
  for (size_t back = 1; back <= std::min<size_t>(2, i); ++back) {
    BytesMaker* maker = ops[i - back]->bytes_maker();
    if (!maker) continue;
    if (maker->tensor != kNoTensor && maker->tensor == reader.tensor) return maker;
    if (maker->bytes.slot >= 0) return nullptr;
  }
  return nullptr;
}

}  // namespace

size_t hand_bytes(std::span<const CompiledOpPtr> ops) {
  size_t most = 0;
  int slot = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    BytesReader* reader = ops[i]->bytes_reader();
    if (!reader || (!reader->bytes.wanted[0] && !reader->bytes.wanted[1])) continue;
    BytesMaker* maker = maker_of(ops, i, *reader);
    if (!maker) continue;
    reader->bytes.slot = slot;
    maker->bytes = reader->bytes;
    most = std::max(most, reader->bytes.n_bytes());
    slot = 1 - slot;
  }
  return most;
}

}  // namespace tandem::cuda
