// The backends that this program is built with. backends.cpp is the only file that names them all.
#pragma once

#include "device/registry.h"
#include "tools/options/options.h"

namespace tandem::tools {

// `threads`: of the host that the registry makes.
Registry backends(const ThreadOptions& threads = {});

}  // namespace tandem::tools
