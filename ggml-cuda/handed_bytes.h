// Products of few tokens read their input as bytes (quantize.h). Where the op before makes that input, it writes the bytes
// as well, and a launch is saved: one that does little, but takes a few microseconds.
//
// Products of more tokens by cuBLAS or wgmma.h read their input as 16-bit floats: the op before writes those instead, or as
// well where other ops read its floats. What is saved is reading and mostly also writing four bytes an element: of a prompt of
// 2048 tokens of Llama 3.1 8B 370 MB a layer.
//
// The bytes, or the 16-bit floats, lie at the start of the scratch, in two slots: an op may read those of one and write to the
// other. Nobody writes to a slot before the last op that reads it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>

#include "ggml-cuda/compiled_op.h"
#include "ggml-cuda/made_bytes.h"
#include "ggml-cuda/narrow.h"

namespace tandem::cuda {

inline constexpr int64_t kMaxHandedTokens = 8;  // kMaxMatvecTokens

// Bytes of a tensor [n, k], n <= kMaxHandedTokens, in one of the slots; or its 16-bit floats, n > few.
struct HandedBytes {
  int slot = -1;  // none
  int64_t k = 0;
  std::array<bool, kEncodings> wanted{};
  std::optional<NarrowForm> narrow = {};
  int64_t few = 0, max_n = 0;
  int64_t n_narrow_reads = 0;  // of the graph's that read them instead of floats

  bool any_wanted() const { return wanted[0] || wanted[1]; }
  bool is_handed(int64_t n) const { return slot >= 0 && n <= kMaxHandedTokens; }
  Activations at(const LaunchContext& context, int encoding) const {
    return activations_at(context.handed[slot] + encoding * activation_bytes(kMaxHandedTokens, k),
                          kMaxHandedTokens, k);
  }
  // [n, k] for the tokens of a step, or null where they are not handed.
  uint16_t* narrow_at(const LaunchContext& context, int64_t n) const {
    return slot >= 0 && narrow && n > few ? reinterpret_cast<uint16_t*>(context.handed[slot]) : nullptr;
  }
  size_t n_bytes() const {
    return static_cast<size_t>(std::max(any_wanted() ? kEncodings * activation_bytes(kMaxHandedTokens, k) : 0,
                                        narrow ? 2 * max_n * k : 0));
  }
  // For the kernel that makes them, of a step of n tokens.
  MadeBytes made(const LaunchContext& context, int64_t n) const;
};

// An op that reads its input as bytes.
struct BytesReader {
  TensorId tensor = kNoTensor;
  HandedBytes bytes;    // `wanted`, k and `narrow` are set, slot once an op makes them
  int64_t n_reads = 1;  // of the graph, that the op stands for
};
// An op that makes bytes of its output, if k is right for it.
struct BytesMaker {
  TensorId tensor = kNoTensor;  // kNoTensor: it cannot
  HandedBytes bytes;
  int64_t few = INT64_MAX;      // it can make 16-bit floats in steps of more tokens
  int64_t n_reads = INT64_MAX;  // of the tensor in the graph

  bool makes_floats(int64_t n) const {
    return !(bytes.slot >= 0 && bytes.narrow && n > bytes.few && bytes.n_narrow_reads == n_reads);
  }
};

// Connects neighbours, or ops with one between them; two ops may read what one makes. Returns the bytes of the slots.
std::array<size_t, 2> hand_bytes(std::span<const CompiledOpPtr> ops);

}  // namespace tandem::cuda
