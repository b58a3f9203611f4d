// Contexts beyond what a model was trained with.
#pragma once

#include <cstdint>

#include "model/hparams.h"

namespace tandem {

// Warns of a context of n_ctx tokens, n_sequence for each sequence, that the user asks for and that is longer than what the training
// reaches, with self-extend or with positions that the user scales.
void warn_of_long_context(const Hparams& h, const RopeOverrides& rope, int64_t n_ctx, int64_t n_sequence);

}  // namespace tandem
