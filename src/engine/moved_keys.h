// Moving cached keys to other positions without computing them again, after tokens before them were dropped. Where the last
// thing done to a key is the rotation by its position (RoPE), a turn by the difference of two positions takes it from one to
// the other; values do not depend on positions. What the keys and values of deeper layers had seen of the dropped tokens stays
// in them, so this is not what the remaining tokens alone would give.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "kv/cache.h"

namespace tandem {

// How the keys of a layer depend on their position.
struct KeyRotation {
  RopeStyle style = RopeStyle::pair;
  int64_t first = 0;              // column of the head
  std::vector<double> frequency;  // [n_rot / 2], radians a position; empty: the keys do not depend on it
};

// Of each layer of the cache. None if some layer's keys depend on positions in another way, have been changed after their
// rotation (a norm, a Hadamard matrix, latent rows), are stored in blocks with a scale, which each move would round anew, or
// if layers have states instead of rows.
std::optional<std::vector<KeyRotation>> key_rotations(const Graph& graph, const KvConfig& config);

// Rotates rows [n_rows, head_dim] of F32, F16 or BF16 by a difference of positions.
void rotate_keys(const KeyRotation& rotation, DType dtype, int64_t head_dim, int64_t n_rows, int64_t by,
                 std::byte* rows);

}  // namespace tandem
