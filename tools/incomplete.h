// Constrained output that was cut short, in every command that answers a program.
#pragma once

#include <functional>
#include <string>

#include "engine/generate.h"
#include "sample/sampler.h"

namespace tandem::tools {

// Constrained output is the beginning of a valid text; if it was cut, it is not a whole one. Then warns, calls
// `note` (with --json) with the same words, and throws ExitCode{7}, which a program that parses the text sees.
void check_complete(const SamplerParams& params, StopReason reason,
                    const std::function<void(const std::string&)>& note = {});

}  // namespace tandem::tools
