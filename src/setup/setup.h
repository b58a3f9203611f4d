// From options to engine objects, for the program and for the C library: the devices, their measured speeds,
// and the model file, opened as the placement needs it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cpu/observer.h"
#include "device/registry.h"
#include "engine/model.h"

namespace tandem {

// The CPU device. `observer` may be empty. Throws Error(usage) for an instruction set that the machine lacks.
std::unique_ptr<Device> make_cpu(const DeviceOptions& options, cpu::ProductObserver observer = {});
// The GPUs that the options choose, and why there are none. Throws Error(usage) for a name that no GPU has.
FoundDevices chosen_gpus(const Registry& registry, const DeviceOptions& options);
std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices);

// The largest model, in bytes, to read into memory as a whole; layers of a larger one may stay on disk.
size_t most_to_read_ahead(const OffloadOptions& options);
// Loads options.model.path and sets in the options how it is read ahead. Throws what Model::load throws, and
// Error(usage) for options that contradict each other.
std::unique_ptr<Model> open_model(EngineOptions& options);

// If there is a GPU, sets options.rates, by which the planner chooses what the options leave open: speeds of
// the devices, and of the disk if part of the model or of the cache may stay there, measured unless they are known.
void measure_speeds(EngineOptions& options, const std::vector<std::unique_ptr<Device>>& devices,
                    const Model& model);
// Bytes per second of the model's disk; 0: no part of this model or of the cache can stay on disk.
double disk_rate(const Model& model, const EngineOptions& options);

}  // namespace tandem
