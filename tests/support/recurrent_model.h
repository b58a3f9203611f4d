// Tiny models with recurrent layers and random weights, with more heads than those of the reference models.
#pragma once

#include "support/tiny_model.h"

namespace tandem::test {

enum class RecurrentKind : uint8_t {
  delta_grouped,  // qwen3next: value heads in the order of the key heads, q, k, v and z in one matrix; a mixture
  delta_tiled,      // qwen35: value heads round after round of the key heads
  mamba_groups,     // granitehybrid
  mamba_one_group,  // the same with one group of b and c
  short_conv,       // lfm2
};
inline constexpr RecurrentKind kRecurrentKinds[] = {
    RecurrentKind::delta_grouped, RecurrentKind::delta_tiled, RecurrentKind::mamba_groups,
    RecurrentKind::mamba_one_group, RecurrentKind::short_conv};
const char* name_of(RecurrentKind kind);

// Four layers of 64 columns, one of which attends with 8 heads and 4 key-value heads. Delta net: 8 heads of keys, 16 of
// values; Mamba-2: 16 heads, 4 groups.
TinyModel recurrent_model(RecurrentKind kind, DType dtype = DType::F32);

}  // namespace tandem::test
