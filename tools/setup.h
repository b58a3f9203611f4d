// From options to engine objects, for every command that runs a model.
#pragma once

#include <memory>
#include <vector>

#include "cpu/observer.h"
#include "device/registry.h"
#include "engine/session.h"

namespace tandem::tools {

// Loads the model file with the user's overrides; sets in the options how it is read ahead. Throws what
// Model::load throws, and Error(usage) for options that contradict each other.
std::unique_ptr<Model> load_model(EngineOptions& options);
// The largest model, in bytes, to read into memory as a whole; layers of a larger one may stay on disk.
size_t most_to_read_ahead(const OffloadOptions& options);

// The CPU device. `observer` may be empty.
std::unique_ptr<Device> make_cpu(const DeviceOptions& options, cpu::ProductObserver observer = {});
// The devices for a command: [0] is the CPU, then the GPUs that --device selects. Reports in one line why
// there is no GPU; throws Error(usage) if -ngl needs one, or --device names one that does not exist.
std::vector<std::unique_ptr<Device>> make_devices(const EngineOptions& options);
// The same of other backends than the program's.
std::vector<std::unique_ptr<Device>> devices_of(const Registry& registry, const EngineOptions& options = {});
// The table of --list-devices.
std::string device_table(const std::vector<std::unique_ptr<Device>>& devices);
std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices);

// If there is a GPU, sets options.rates, by which the planner chooses what the options leave open: speeds of
// the devices, and of the disk if part of the model may stay there, measured unless they are known.
void measure_speeds(EngineOptions& options, const std::vector<std::unique_ptr<Device>>& devices,
                    const Model& model);
// Bytes per second; 0: no part of this model can stay on disk.
double disk_rate(const Model& model, const OffloadOptions& options);

// Prints the table of --explain to stderr; empty without --explain.
Session::Explain explain_on_stderr(bool explain);

}  // namespace tandem::tools
