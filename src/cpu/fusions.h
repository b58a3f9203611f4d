// Lowering for the CPU: runs of nodes that one compiled op computes, so that steps of a token have fewer barriers.
#pragma once

#include <vector>

#include "cpu/compiled_op.h"

namespace tandem::cpu {

// Compiles the context's segment.
std::vector<CompiledOpPtr> compile_ops(const CompileContext& context);

}  // namespace tandem::cpu
