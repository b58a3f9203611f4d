// From option structs to engine objects, for every command that runs a model.
#pragma once

#include <memory>
#include <vector>

#include "cpu/observer.h"
#include "device/registry.h"
#include "engine/session.h"
#include "tools/options/offload.h"
#include "tools/options/options.h"

namespace tandem::tools {

// Loads the model file with the user's overrides. Throws what Model::load throws, and Error(usage) if
// `offload` contradicts the model options; records in `offload` how the file was loaded.
std::unique_ptr<Model> load_model(const ModelOptions& options, const RopeOptions& rope = {},
                                  Numa numa = Numa::none, OffloadFlags* offload = nullptr);
// The largest model, in bytes, to read into memory as a whole; layers of a larger one may stay on disk.
size_t most_to_read_ahead(const OffloadFlags& flags);

// The CPU device. `observer` may be empty.
std::unique_ptr<Device> make_cpu(const ThreadOptions& options, cpu::ProductObserver observer = {});
// The devices for a command: [0] is the CPU, then the GPUs that --device selects. Reports in one line why
// there is no GPU; throws Error(usage) if -ngl needs one, or --device names one that does not exist.
std::vector<std::unique_ptr<Device>> make_devices(const ThreadOptions& options,
                                                  const OffloadOptions& offload = {});
// The same of other backends than the program's.
std::vector<std::unique_ptr<Device>> devices_of(const Registry& registry, const OffloadOptions& offload = {});
// The table of --list-devices.
std::string device_table(const std::vector<std::unique_ptr<Device>>& devices);
std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices);

// If there is a GPU, measures device speeds (unless they are known) to choose what the options leave open,
// and the disk's speed if part of the model may stay on disk.
SessionOptions session_options(const ContextOptions& options, const OffloadOptions& offload = {},
                               const std::vector<std::unique_ptr<Device>>& devices = {},
                               const Model* model = nullptr);
// Bytes per second; 0: no part of this model can stay on disk.
double disk_rate(const Model& model, const OffloadFlags& flags);

// Prints the table of --explain to stderr; empty without --explain.
Session::Explain explain_on_stderr(const OffloadOptions& offload);

}  // namespace tandem::tools
