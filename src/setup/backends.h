// The backends that the program and the library are built with. backends.cpp is the only file that names them
// all.
#pragma once

#include "device/registry.h"
#include "engine/options.h"

namespace tandem {

// `options`: of the host that the registry makes.
Registry backends(const DeviceOptions& options = {});

}  // namespace tandem
