#include "tools/setup.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "base/log.h"
#include "cpu/cpu_device.h"
#include "cpu/host_memory.h"
#include "plan/disk_rate.h"
#include "plan/rates.h"
#include "tools/backends.h"

namespace tandem::tools {
namespace {

// TANDEM_ISA overrides the instruction set, for comparison and debugging.
cpu::Isa chosen_isa() {
  const char* name = std::getenv("TANDEM_ISA");
  if (name == nullptr || *name == '\0') return cpu::best_isa();
  const auto isa = cpu::isa_from_name(name);
  const auto supported = cpu::supported_isas();
  if (!isa || std::find(supported.begin(), supported.end(), *isa) == supported.end()) {
    throw_error(ErrorCode::usage, "TANDEM_ISA={}: this machine supports scalar to {}", printable(name),
                cpu::isa_name(supported.back()));
  }
  return *isa;
}

// Adds the GPUs that the options allow.
void add_gpus(std::vector<std::unique_ptr<Device>>& devices, const Registry& registry,
              const EngineOptions& options) {
  const int64_t wanted = options.offload.n_gpu_layers.value_or(0);
  auto [gpus, why] = options.devices.no_gpus ? FoundDevices{{}, "--device none"} : registry.find_gpus();
  if (gpus.empty()) {
    if (wanted > 0) throw_error(ErrorCode::usage, "-ngl needs a GPU, but there is none: {}", why);
    if (streams(options.offload)) {
      throw_error(ErrorCode::usage, "streaming weights needs a GPU, but there is none: {}", why);
    }
    // No message at the default level if the user chose the CPU.
    const bool asked = options.offload.n_gpu_layers.has_value() || options.devices.no_gpus;
    log_text(asked ? LogLevel::verbose : LogLevel::info, "not using a GPU: {}", fmt::make_format_args(why));
  }
  for (const std::string& name : options.devices.gpus) {
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const auto& d) { return d && d->info().name == name; });
    if (found == gpus.end()) throw_error(ErrorCode::usage, "--device: no GPU named {}", printable(name));
    devices.push_back(std::move(*found));
  }
  if (!options.devices.gpus.empty()) return;
  for (auto& gpu : gpus) devices.push_back(std::move(gpu));
}

}  // namespace

size_t most_to_read_ahead(const OffloadOptions& options) {
  if (options.disk == Toggle::off) return SIZE_MAX;
  return options.budgets.max_ram.value_or(cpu::host_memory_info().free_bytes);
}

std::unique_ptr<Model> load_model(EngineOptions& options) {
  check_options(options);
  options.model.open.prefetch_limit = most_to_read_ahead(options.offload);
  options.model.open.numa = options.devices.numa != Numa::none;
  return Model::load(options.model);
}

std::unique_ptr<Device> make_cpu(const DeviceOptions& options, cpu::ProductObserver observer) {
  cpu::CpuOptions cpu_options;
  cpu_options.n_threads = options.n_threads > 0 ? options.n_threads : 0;
  cpu_options.n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : 0;
  cpu_options.isa = chosen_isa();
  // With numactl, threads stay where it put them.
  if (options.numa == Numa::distribute) cpu_options.numa = cpu::NumaPolicy::distribute;
  if (options.numa == Numa::isolate) cpu_options.numa = cpu::NumaPolicy::isolate;
  cpu_options.observer = std::move(observer);
  return cpu::make_cpu_device(cpu_options);
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

std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<Device*> list;
  for (const auto& device : devices) list.push_back(device.get());
  return list;
}

void measure_speeds(EngineOptions& options, const std::vector<std::unique_ptr<Device>>& devices,
                    const Model& model) {
  if (devices.size() < 2 || !options.offload.choose_by_speed) return;
  options.rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
  if (!options.rates.empty()) options.rates[0].disk_bytes_per_s = disk_rate(model, options.offload);
}

Session::Explain explain_on_stderr(bool explain) {
  if (!explain) return nullptr;
  return [](const std::string& table) { fputs(table.c_str(), stderr); };
}

double disk_rate(const Model& model, const OffloadOptions& options) {
  const bool may_stay = model.file().is_mapped() && model.file().n_file_bytes() > most_to_read_ahead(options);
  return may_stay ? disk_rate_of(model.disk_files(), RatesCache(RatesCache::usual_path())) : 0;
}

}  // namespace tandem::tools
