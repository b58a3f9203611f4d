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

const char* scaling_name(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::none: return "none";
    case RopeScaling::linear: return "linear";
    case RopeScaling::yarn: return "yarn";
  }
  return "none";
}

// Drops values that mean "the model's default": 0, and for some YaRN parameters any negative number.
std::optional<float> unless(std::optional<float> value, bool (*means_default)(float)) {
  return value && means_default(*value) ? std::nullopt : value;
}

RopeOverrides rope_overrides(const RopeOptions& options) {
  const auto zero = [](float x) { return x == 0.0f; };
  const auto negative = [](float x) { return x < 0.0f; };
  RopeOverrides rope;
  if (options.scaling) rope.scaling = scaling_name(*options.scaling);
  rope.freq_base = unless(options.freq_base, zero);
  rope.freq_scale = unless(options.freq_scale, zero);
  if (options.yarn_orig_ctx.value_or(0) > 0) rope.n_ctx_orig = options.yarn_orig_ctx;
  rope.ext_factor = unless(options.yarn_ext_factor, negative);
  rope.attn_factor = unless(options.yarn_attn_factor, negative);
  rope.beta_fast = unless(options.yarn_beta_fast, negative);
  rope.beta_slow = unless(options.yarn_beta_slow, negative);
  return rope;
}

// TANDEM_ISA overrides the instruction set, for comparison and debugging.
cpu::Isa chosen_isa() {
  const char* name = std::getenv("TANDEM_ISA");
  if (name == nullptr || *name == '\0') return cpu::best_isa();
  const auto isa = cpu::isa_from_name(name);
  const auto supported = cpu::supported_isas();
  if (!isa || std::find(supported.begin(), supported.end(), *isa) == supported.end()) {
    throw_error(ErrorCode::usage, "TANDEM_ISA=%s: this machine supports scalar to %s",
                printable(name).c_str(), std::string(cpu::isa_name(supported.back())).c_str());
  }
  return *isa;
}

// Adds the GPUs that the options allow.
void add_gpus(std::vector<std::unique_ptr<Device>>& devices, const Registry& registry,
              const OffloadOptions& offload) {
  const int64_t wanted = offload.flags.n_gpu_layers.value_or(0);
  auto [gpus, why] = offload.no_devices ? FoundDevices{{}, "--device none"} : registry.find_gpus();
  if (gpus.empty()) {
    if (wanted > 0) throw_error(ErrorCode::usage, "-ngl needs a GPU, but there is none: %s", why.c_str());
    if (streams(offload.flags)) {
      throw_error(ErrorCode::usage, "streaming weights needs a GPU, but there is none: %s", why.c_str());
    }
    // No message at the default level if the user chose the CPU.
    const bool asked = offload.flags.n_gpu_layers.has_value() || offload.no_devices;
    (asked ? log_verbose : log_info)("not using a GPU: %s", why.c_str());
  }
  for (const std::string& name : offload.devices) {
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const auto& d) { return d && d->info().name == name; });
    if (found == gpus.end())
      throw_error(ErrorCode::usage, "--device: no GPU named %s", printable(name).c_str());
    devices.push_back(std::move(*found));
  }
  if (!offload.devices.empty()) return;
  for (auto& gpu : gpus) devices.push_back(std::move(gpu));
}

}  // namespace

size_t most_to_read_ahead(const OffloadFlags& flags) {
  if (flags.disk == Toggle::off) return SIZE_MAX;
  return flags.budgets.max_ram.value_or(cpu::host_memory_info().free_bytes);
}

std::unique_ptr<Model> load_model(const ModelOptions& options, const RopeOptions& rope, Numa numa,
                                  OffloadFlags* offload) {
  if (offload) {
    offload->loaded_by.reset();
    if (options.mlock) offload->loaded_by = {Setting::mlock};
    if (!options.mmap) offload->loaded_by = {Setting::mmap, "off"};
    check_flags(*offload);
  }
  tandem::ModelOptions engine;
  engine.open.prefetch_limit = most_to_read_ahead(offload ? *offload : OffloadFlags{});
  engine.open.mmap = options.mmap;
  engine.open.mlock = options.mlock;
  engine.open.numa = numa != Numa::none;
  engine.overrides = options.overrides;
  engine.rope = rope_overrides(rope);
  return Model::load(options.model, engine);
}

std::unique_ptr<Device> make_cpu(const ThreadOptions& options, cpu::ProductObserver observer) {
  cpu::CpuOptions cpu_options;
  cpu_options.n_threads = options.threads > 0 ? options.threads : 0;
  cpu_options.n_threads_batch = options.threads_batch > 0 ? options.threads_batch : 0;
  cpu_options.isa = chosen_isa();
  // With numactl, threads stay where it put them.
  if (options.numa == Numa::distribute) cpu_options.numa = cpu::NumaPolicy::distribute;
  if (options.numa == Numa::isolate) cpu_options.numa = cpu::NumaPolicy::isolate;
  cpu_options.observer = std::move(observer);
  return cpu::make_cpu_device(cpu_options);
}

std::vector<std::unique_ptr<Device>> make_devices(const ThreadOptions& options,
                                                  const OffloadOptions& offload) {
  return devices_of(backends(options), offload);
}

std::vector<std::unique_ptr<Device>> devices_of(const Registry& registry, const OffloadOptions& offload) {
  std::vector<std::unique_ptr<Device>> devices;
  devices.push_back(registry.make_host());
  log_verbose("%s: %s", devices[0]->info().name.c_str(), devices[0]->info().description.c_str());
  add_gpus(devices, registry, offload);
  return devices;
}

std::string device_table(const std::vector<std::unique_ptr<Device>>& devices) {
  std::string text;
  for (const auto& device : devices) {
    const MemoryInfo memory = device->memory_info();
    if (!text.empty()) text += '\n';
    text += format("%-8s %s, %zu MiB, %zu MiB free", device->info().name.c_str(),
                   device->info().description.c_str(), memory.total_bytes >> 20, memory.free_bytes >> 20);
  }
  return text;
}

std::vector<Device*> pointers(const std::vector<std::unique_ptr<Device>>& devices) {
  std::vector<Device*> list;
  for (const auto& device : devices) list.push_back(device.get());
  return list;
}

SessionOptions session_options(const ContextOptions& options, const OffloadOptions& offload,
                               const std::vector<std::unique_ptr<Device>>& devices, const Model* model) {
  SessionOptions session;
  session.n_ctx = options.ctx_size;
  session.n_batch = options.batch_size;
  session.n_ubatch = options.ubatch_size;
  session.k_dtype = options.cache_type_k;
  session.v_dtype = options.cache_type_v;
  session.offload = offload.flags;
  session.oom_ladder = offload.oom_ladder;
  if (devices.size() > 1 && offload.fit) {
    session.rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
    if (model && !session.rates.empty()) session.rates[0].disk_bytes_per_s = disk_rate(*model, offload.flags);
    session.ubatch_is_free = !options.ubatch_given;
    session.kv_dtype_is_free = offload.fit_kv_quant && !options.cache_type_given;
  }
  return session;
}

Session::Explain explain_on_stderr(const OffloadOptions& offload) {
  if (!offload.explain) return nullptr;
  return [](const std::string& table) { fputs(table.c_str(), stderr); };
}

double disk_rate(const Model& model, const OffloadFlags& flags) {
  const bool may_stay = model.file().is_mapped() && model.file().n_file_bytes() > most_to_read_ahead(flags);
  return may_stay ? disk_rate_of(model.disk_files(), RatesCache(RatesCache::usual_path())) : 0;
}

}  // namespace tandem::tools
