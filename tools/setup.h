// From option structs to engine objects: what every command that runs a model does first.
#pragma once

#include <memory>
#include <vector>

#include "device/device.h"
#include "engine/session.h"
#include "tools/options.h"

namespace tandem::tools {

// The model file, with the user's overrides. Throws what Model::load throws.
std::unique_ptr<Model> load_model(const ModelOptions& options, const RopeOptions& rope = {}, Numa numa = Numa::none);

// The devices that commands run on; [0] is the CPU. Threads as the user says, bound to nodes as --numa says.
std::vector<std::unique_ptr<Device>> make_devices(const ThreadOptions& options);
std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices);

SessionOptions session_options(const ContextOptions& options);

}  // namespace tandem::tools
