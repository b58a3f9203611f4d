// Products of few tokens read their input as bytes (quantize.h). Where the op before makes that input, it writes the bytes
// as well, and a launch is saved: one that does little, but takes a few microseconds.
//
// The bytes lie at the start of the scratch, in two slots: an op may read the bytes of one and write those of the other.
// Nobody writes to a slot before the last op that reads it.
#pragma once

#include <array>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/made_bytes.h"

namespace tandem::cuda {

inline constexpr int64_t kMaxHandedTokens = 8;  // kMaxMatvecTokens

// Bytes of a tensor [n, k], n <= kMaxHandedTokens, in one of the slots.
struct HandedBytes {
  int slot = -1;  // none
  int64_t k = 0;
  std::array<bool, kEncodings> wanted{};

  bool is_handed(int64_t n) const { return slot >= 0 && n <= kMaxHandedTokens; }
  Activations at(const LaunchContext& context, int encoding) const {
    return activations_at(context.handed[slot] + encoding * activation_bytes(kMaxHandedTokens, k),
                          kMaxHandedTokens, k);
  }
  size_t n_bytes() const { return static_cast<size_t>(kEncodings * activation_bytes(kMaxHandedTokens, k)); }
  // For the kernel that makes them, of a step of n tokens.
  MadeBytes made(const LaunchContext& context, int64_t n) const;
};

// An op that reads its input as bytes.
struct BytesReader {
  TensorId tensor = kNoTensor;
  HandedBytes bytes;  // `wanted` and k are set, slot once an op makes them
};
// An op that makes bytes of its output, if k is right for it.
struct BytesMaker {
  TensorId tensor = kNoTensor;  // kNoTensor: it cannot
  HandedBytes bytes;
};

// Connects neighbours, or ops with one between them; two ops may read what one makes. Returns the bytes of a slot.
size_t hand_bytes(std::span<const CompiledOpPtr> ops);

}  // namespace tandem::cuda
