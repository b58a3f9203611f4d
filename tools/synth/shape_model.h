// A model of a known shape without its weights, to plan with before there is a file.
#pragma once

#include <memory>

#include "engine/model.h"
#include "tools/synth/synth.h"

namespace tandem::tools {

// `options`: overrides and RoPE options of the user; the path and how the file is opened are replaced. The weights are
// a hole in a file in memory: they take no memory, and read as zeros. Throws what Model::load throws, and Error(io) if
// the system makes no such file.
std::unique_ptr<Model> load_shape(const Shape& shape, const SynthOptions& synth, ModelOptions options);

}  // namespace tandem::tools
