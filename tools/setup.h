// From options to engine objects, for every command that runs a model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/session.h"
#include "setup/setup.h"
#include "tools/options/options.h"

namespace tandem::tools {

// Sets engine.model.path to the file that the options name, which is downloaded first if it is not on this machine (see
// hub/model_path.h). Does nothing the second time.
void find_model_file(CommandOptions& options);
// Finds and loads the model.
std::unique_ptr<Model> load_model(CommandOptions& options);
// Loads the model file with the user's overrides; sets in the options how it is read ahead. Throws what
// open_model throws.
std::unique_ptr<Model> load_model(EngineOptions& options);

// The devices for a command: [0] is the CPU, then the GPUs that --device selects. Reports in one line why
// there is no GPU where -ngl asks for one, else only in detail; throws Error(usage) if weights are to be
// streamed to one, or --device names one that does not exist.
std::vector<std::unique_ptr<Device>> make_devices(const EngineOptions& options);
// The same of other backends than the program's.
std::vector<std::unique_ptr<Device>> devices_of(const Registry& registry, const EngineOptions& options = {});
// "CPU and CUDA0".
std::string device_names(const std::vector<std::unique_ptr<Device>>& devices);
// The table of --list-devices.
std::string device_table(const std::vector<std::unique_ptr<Device>>& devices);

// Prints the table of --explain to stderr; empty without --explain.
Session::Explain explain_on_stderr(bool explain);

}  // namespace tandem::tools
