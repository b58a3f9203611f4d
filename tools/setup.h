// From option structs to engine objects: what every command that runs a model does first.
#pragma once

#include <memory>
#include <vector>

#include "cpu/observer.h"
#include "device/device.h"
#include "engine/session.h"
#include "tools/options/offload.h"
#include "tools/options/options.h"

namespace tandem::tools {

// The model file, with the user's overrides. Throws what Model::load throws, and Error(usage) where
// `offload`, to which it adds what it has to know of the model's options, contradicts them.
std::unique_ptr<Model> load_model(const ModelOptions& options, const RopeOptions& rope = {},
                                  Numa numa = Numa::none, OffloadFlags* offload = nullptr);
// The largest model that may be read into memory as a whole: layers of a larger one may stay on disk.
size_t most_to_read_ahead(const OffloadFlags& flags);

// The CPU alone. `observer` may be empty.
std::unique_ptr<Device> make_cpu(const ThreadOptions& options, cpu::ProductObserver observer = {});
// The devices that commands run on; [0] is the CPU, then the GPUs that --device leaves. Says in one line why
// there is no GPU where one could be expected; throws Error(usage) when -ngl asks for one all the same, or
// --device for one that is not there.
std::vector<std::unique_ptr<Device>> make_devices(const ThreadOptions& options,
                                                  const OffloadOptions& offload = {});
// The table of --list-devices.
std::string device_table(const std::vector<std::unique_ptr<Device>>& devices);
std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices);

// With devices that include a GPU, what the options leave open is chosen by their speed, which is measured if
// it was never before; so is that of the disk, for a model of which parts may stay there.
SessionOptions session_options(const ContextOptions& options, const OffloadOptions& offload = {},
                               const std::vector<std::unique_ptr<Device>>& devices = {},
                               const Model* model = nullptr);
// Bytes per second; 0: of this model nothing can stay on disk.
double disk_rate(const Model& model, const OffloadFlags& flags);

// What --explain asks for; empty without it.
Session::Explain explain_on_stderr(const OffloadOptions& offload);

}  // namespace tandem::tools
