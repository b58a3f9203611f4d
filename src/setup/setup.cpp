#include "setup/setup.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/numa.h"
#include "base/setting.h"
#include "cpu/cpu_device.h"
#include "cpu/host_memory.h"
#include "plan/disk_rate.h"
#include "plan/offload.h"
#include "plan/rates.h"
#include "sandbox/system_files.h"

namespace tandem {
namespace {

// The environment's TANDEM_ISA is for programs that have no such option.
cpu::Isa chosen_isa(const DeviceOptions& options) {
  if (!options.isa.empty()) return cpu::supported_isa(options.isa);
  const char* name = std::getenv("TANDEM_ISA");
  return name == nullptr || *name == '\0' ? cpu::best_isa() : cpu::supported_isa(name, "TANDEM_ISA: ");
}

size_t memory_for_weights(const OffloadOptions& options) {
  return options.budgets.max_ram.value_or(cpu::host_memory_info().free_bytes);
}

// A model is copied into memory of several nodes if it takes no more of it: the rest is for the cache, and for the file's
// own pages while they are read.
constexpr double kCopiedShare = 0.8;

// Whether threads and weights are divided over the nodes. A process that numactl, a container or a batch system has put on one
// node sees only that one.
bool distributes(const DeviceOptions& options) {
  if (options.numa != Numa::automatic) return options.numa == Numa::distribute;
  return numa_nodes().size() > 1 && !sandbox::has_gpu_driver();
}

}  // namespace

std::unique_ptr<Device> make_cpu(const DeviceOptions& options, cpu::ProductObserver observer) {
  cpu::CpuOptions cpu_options;
  cpu_options.n_threads = options.n_threads > 0 ? options.n_threads : 0;
  cpu_options.n_threads_batch = options.n_threads_batch > 0 ? options.n_threads_batch : 0;
  cpu_options.isa = chosen_isa(options);
  if (distributes(options)) cpu_options.numa = cpu::NumaPolicy::distribute;
  if (options.numa == Numa::isolate) cpu_options.numa = cpu::NumaPolicy::isolate;
  cpu_options.observer = std::move(observer);
  return cpu::make_cpu_device(cpu_options);
}

FoundDevices chosen_gpus(const Registry& registry, const DeviceOptions& options) {
  if (options.no_gpus) return {{}, "the options choose none"};
  FoundDevices found = registry.find_gpus();
  if (options.gpus.empty()) return found;
  FoundDevices chosen;
  for (const std::string& name : options.gpus) {
    const auto gpu = std::find_if(found.devices.begin(), found.devices.end(),
                                  [&](const auto& d) { return d && d->info().name == name; });
    if (gpu == found.devices.end()) {
      const std::string why = found.why_none.empty() ? "" : " (" + found.why_none + ")";
      throw_error(ErrorCode::usage, "{}: there is no GPU named {}{}", setting_text(Setting::devices), printable(name),
                  why);
    }
    chosen.devices.push_back(std::move(*gpu));
  }
  return chosen;
}

std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<Device*> list;
  for (const auto& device : devices) list.push_back(device.get());
  return list;
}

size_t most_to_read_ahead(const OffloadOptions& options) {
  return options.disk == Toggle::off ? SIZE_MAX : memory_for_weights(options);
}

std::unique_ptr<Model> open_model(EngineOptions& options) {
  check_options(options);
  options.model.open.prefetch_limit = most_to_read_ahead(options.offload);
  OpenOptions& open = options.model.open;
  open.numa = options.devices.numa != Numa::none && options.devices.numa != Numa::automatic;
  if (distributes(options.devices) && options.offload.disk != Toggle::on) {
    open.nodes = NodeShares(numa_nodes());
    open.node_copy_limit =
        static_cast<uint64_t>(kCopiedShare * static_cast<double>(memory_for_weights(options.offload)));
  }
  return Model::load(options.model);
}

void measure_speeds(EngineOptions& options, const std::vector<std::unique_ptr<Device>>& devices,
                    const Model& model) {
  if (devices.size() < 2 || !options.offload.choose_by_speed) return;
  check_devices(options.offload, devices);  // before the seconds that this takes
  options.rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
  if (!options.rates.empty()) options.rates[0].disk_bytes_per_s = disk_rate(model, options);
}

double disk_rate(const Model& model, const EngineOptions& options) {
  const bool may_stay =
      model.file().is_mapped() && model.file().n_file_bytes() > most_to_read_ahead(options.offload);
  return may_stay || options.context.kv_memory
             ? disk_rate_of(model.disk_files(), RatesCache(RatesCache::usual_path()))
             : 0;
}

}  // namespace tandem
