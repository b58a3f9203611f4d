// What tells apart the models and settings whose caches must not be mixed up. For saved sessions and the store of
// computed blocks.
#pragma once

#include <cstdint>
#include <string>

#include "engine/model.h"

namespace tandem {

// Returns 32 hexadecimal digits that identify a model: of its metadata with overrides, its tensor table, and a sample of
// every tensor.
std::string fingerprint(const Model& model);

// Returns 32 hexadecimal digits for how cached keys are turned: every rotation of the graph and the factors it uses.
// Options over the model's rotation decide that, and with LongRoPE the size of the context (of one sequence).
std::string rotation(const Architecture& architecture, int64_t n_ctx);

}  // namespace tandem
