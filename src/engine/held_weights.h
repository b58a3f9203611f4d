// Weights that leave the pages of their file, for memory of the process, while a model runs: whether and while there is room.
#pragma once

#include "device/device.h"
#include "engine/model.h"
#include "exec/pinned_weights.h"
#include "plan/footprint.h"
#include "plan/options.h"

namespace tandem {

// Moves bytes of the model's files as long as the host has memory free for them: what was free when all was planned may not be.
// The model and the device outlive what is returned.
HoldBytes hold_while_free(const Model& model, const Device& host);

// Whether what the host computes with may move to huge pages. automatic: if it fits in memory beside the file, and there is one NUMA
// node, because a copy lies where its thread runs.
bool takes_huge_pages(Toggle wanted, const Model& model, const Footprint& bytes, const Device& host);

}  // namespace tandem
