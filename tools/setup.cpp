#include "tools/setup.h"

#include <cstdio>

#include "base/error.h"
#include "base/log.h"
#include "plan/offload.h"
#include "setup/backends.h"

namespace tandem::tools {
namespace {

// Adds the GPUs that the options allow.
void add_gpus(std::vector<std::unique_ptr<Device>>& devices, const Registry& registry,
              const EngineOptions& options) {
  const int64_t wanted = options.offload.n_gpu_layers.value_or(0);
  auto [gpus, why] = chosen_gpus(registry, options.devices);
  if (options.devices.no_gpus) why = "--device none";
  if (gpus.empty()) {
    if (wanted > 0) log_warning("-ngl has no effect: not using a GPU: {}", why);
    if (streams(options.offload)) {
      throw_error(ErrorCode::usage, "streaming weights needs a GPU, but there is none: {}", why);
    }
    if (wanted <= 0) log_verbose("not using a GPU: {}", why);
  }
  for (auto& gpu : gpus) devices.push_back(std::move(gpu));
}

}  // namespace

void find_model_file(CommandOptions& options) {
  options.engine.model.path = model_path(options.engine.model.path, options.hub);
  options.hub = {};
}

std::unique_ptr<Model> load_model(CommandOptions& options) {
  find_model_file(options);
  return load_model(options.engine);
}

std::unique_ptr<Model> load_model(EngineOptions& options) {
  return open_model(options);
}

std::vector<std::unique_ptr<Device>> make_devices(const EngineOptions& options) {
  return devices_of(backends(options.devices), options);
}

std::vector<std::unique_ptr<Device>> devices_of(const Registry& registry, const EngineOptions& options) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(registry.make_host());
  log_verbose("{}: {}", devices[0]->info().name, devices[0]->info().description);
  add_gpus(devices, registry, options);
  return devices;
}

std::string device_names(const std::vector<std::unique_ptr<Device>>& devices) {
  std::string names;
  for (const auto& device : devices) names += (names.empty() ? "" : " and ") + device->info().name;
  return names;
}

std::string device_table(const std::vector<std::unique_ptr<Device>>& devices) {
  std::string text;
  for (const auto& device : devices) {
    const MemoryInfo memory = device->memory_info();
    if (!text.empty()) text += '\n';
    text += format("{:<8} {}, {} MiB, {} MiB free", device->info().name, device->info().description,
                   memory.total_bytes >> 20, memory.free_bytes >> 20);
  }
  return text;
}

Session::Explain explain_on_stderr(bool explain) {
  if (!explain) return nullptr;
  return [](const std::string& table) { fputs(table.c_str(), stderr); };
}

}  // namespace tandem::tools
