// tandem plan: predicts the memory, placement and speed of a model before it runs, for the devices of this
// machine or for a GPU that the machine does not have.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>

#include "base/log.h"
#include "plan/imagined_device.h"
#include "plan/rates.h"
#include "setup/backends.h"
#include "tools/batch/batch_context.h"
#include "tools/command.h"
#include "tools/options/offload.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/plan/report.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

struct PlanOptions : CommandOptions {
  std::optional<KnownGpu> gpu;
  std::optional<size_t> vram;
  std::optional<double> vram_bw, pcie_bw, ram_bw, cpu_bw, disk_bw;  // bytes per second
  int32_t parallel = 1;
  bool json = false;

  bool imagines_gpu() const { return gpu || vram; }
};

std::string known_gpu_names() {
  std::string names;
  for (const KnownGpu& g : backends().known_gpus())
    names += (names.empty() ? "" : ", ") + std::string(g.name);
  return names;
}

KnownGpu parse_gpu(const std::string& name) {
  const Registry registry = backends();
  std::optional<KnownGpu> gpu = registry.find_known(CLI::detail::to_lower(name));
  if (!gpu) gpu = registry.find_known("rtx" + CLI::detail::to_lower(name));
  if (!gpu) {
    throw_error(ErrorCode::usage,
                "--gpu: '{}' is not one of {}; describe another GPU with --vram, --vram-bw and --pcie-bw",
                printable(name), known_gpu_names());
  }
  return *gpu;
}

void add_machine_options(CLI::App& app, PlanOptions& o) {
  const char* group = "The machine to plan for (default: this one)";
  const auto bandwidth = [&app, group](const char* name, const char* help, std::optional<double>& target) {
    choice(app, name, "GB/s", help, "", [name, &target](const std::string& text) {
      const double value = parse_real(name, text, 0);
      if (!(value > 0) || std::isinf(value))
        throw_error(ErrorCode::usage, "{}: found {}, needed a number above 0", name, text);
      target = value * 1e9;
    })->group(group);
  };
  const std::string names = "plan for this GPU, one of " + known_gpu_names();
  choice(app, "--gpu", "NAME", names.c_str(), "", [&o](const std::string& text) {
    o.gpu = parse_gpu(text);
  })->group(group);
  choice(app, "--vram", "SIZE", "memory size of the GPU", "", [&o](const std::string& text) {
    o.vram = parse_bytes("--vram", text);
    if (*o.vram == 0) throw_error(ErrorCode::usage, "--vram: found 0, needed a size above 0");
  })->group(group);
  bandwidth("--vram-bw", "bandwidth of the GPU's memory", o.vram_bw);
  bandwidth("--pcie-bw", "bandwidth of copies from the host to the GPU", o.pcie_bw);
  bandwidth("--ram-bw", "bandwidth of host memory", o.ram_bw);
  bandwidth("--cpu-bw", "rate at which the CPU reads weights while computing (default: as --ram-bw)",
            o.cpu_bw);
  bandwidth("--disk-bw", "rate of reading the model from disk", o.disk_bw);
}

// The devices to plan for, and their speeds.
struct Machine {
  std::vector<std::unique_ptr<DeviceModel>> devices;
  std::vector<DeviceRates> rates;
};

Machine machine_with(const EngineOptions& options) {
  auto devices = make_devices(options);
  std::vector<DeviceRates> rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
  return {{std::make_move_iterator(devices.begin()), std::make_move_iterator(devices.end())},
          std::move(rates)};
}

Machine imagined_machine(const PlanOptions& o) {
  EngineOptions host_only;
  host_only.devices = o.engine.devices;
  host_only.devices.no_gpus = true;
  Machine machine = machine_with(host_only);
  if (machine.rates.empty()) return machine;
  DeviceRates gpu;
  if (o.gpu) {
    gpu = o.gpu->rates;
  } else {
    // A typical GPU: 500 GB/s, 60 operations per byte (below), and a PCIe 4 bus.
    gpu = {0.8 * 500e9, 0, 0.85 * 31.5e9, 8e-6, 2e-6};
  }
  if (o.vram_bw) gpu.read_bytes_per_s = *o.vram_bw;
  if (o.pcie_bw) gpu.bus_bytes_per_s = *o.pcie_bw;
  if (!o.gpu) gpu.ops_per_s = 60 * gpu.read_bytes_per_s * 1.25;
  const size_t memory = o.vram.value_or(o.gpu ? static_cast<size_t>(o.gpu->memory_gib * (1 << 30)) : 0);
  machine.devices.push_back(
      std::make_unique<ImaginedDevice>(o.gpu ? std::string(o.gpu->name) : "GPU", memory,
                                       o.gpu ? o.gpu->weight_bytes : backends().usual_weight_bytes(),
                                       o.gpu ? o.gpu->dtype_support : backends().usual_dtype_support()));
  machine.rates.push_back(gpu);
  return machine;
}

Machine machine_of(const PlanOptions& o) {
  Machine machine;
  if (o.imagines_gpu()) {
    machine = imagined_machine(o);
  } else {
    if (o.vram_bw || o.pcie_bw) throw_error(ErrorCode::usage, "--vram-bw and --pcie-bw need --vram or --gpu");
    machine = machine_with(o.engine);
  }
  if (machine.rates.size() != machine.devices.size()) {
    throw_error(ErrorCode::out_of_memory, "not enough memory to measure speeds");
  }
  DeviceRates& host = machine.rates[0];
  if (o.ram_bw) host.read_bytes_per_s = host.memory_bytes_per_s = *o.ram_bw;
  if (o.cpu_bw) host.read_bytes_per_s = o.ram_bw ? std::min(*o.cpu_bw, *o.ram_bw) : *o.cpu_bw;
  return machine;
}

PlanRequest plan_request(const PlanOptions& o, const Model& model, const DeviceModels& devices,
                         std::span<const DeviceRates> rates) {
  ContextOptions shape = o.engine.context;
  if (o.parallel > 1) {
    const BatchContext context = batch_context(shape.n_ctx, 0, o.parallel, model.hparams().n_ctx_train);
    shape.n_ctx = context.n_ctx;
    shape.n_ctx_sequence = context.n_ctx_sequence;
    shape.n_sequences = o.parallel;
  }
  return {model.architecture(),     model.weights(), devices, o.engine.offload, shape, rates,
          model.may_leave_on_disk()};
}

void plan(PlanOptions& o) {
  apply_log_options(o.log);
  check_options(o.engine);
  Machine machine = machine_of(o);
  const ModelHeader header = model_header(o.engine.model.path, o.hub);
  o.engine.model.path = header.path;
  const std::unique_ptr<Model> model = load_model(o.engine);
  const bool has_disk = !header.temporary;  // of which the speed could be measured
  if (o.disk_bw || (!o.imagines_gpu() && has_disk))
    machine.rates[0].disk_bytes_per_s = o.disk_bw ? *o.disk_bw : disk_rate(*model, o.engine.offload);
  const PlanRequest request = plan_request(o, *model, machine.devices, machine.rates);
  const PlanReport report = make_plan_report(request, header.name, model->description());
  Output out;
  out.write(o.json ? plan_json(report) : plan_text(report));
  out.flush();
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App* command = app.add_subcommand("plan", "predict memory, placement and speed before running");
  const auto options = std::make_shared<PlanOptions>();
  add_model_options(*command, *options);
  add_context_options(*command, options->engine.context, options->flash_attention);
  choice(*command, "--batch", "N", "same as --ubatch-size", "", [options](const std::string& text) {
    options->engine.context.n_ubatch = parse_integer("--batch", text, 1);
    options->engine.context.n_ubatch_given = true;
  })->group("Context");
  integer(*command, "--parallel", options->parallel, 1,
          "number of prompts answered at once, as in tandem batch")
      ->group("Context");
  add_machine_options(*command, *options);
  add_offload_options(*command, options->engine, options->explain);
  add_thread_options(*command, options->engine.devices);
  add_rope_options(*command, options->engine.model.rope);
  add_log_options(*command, options->log);
  command->add_flag("--json", options->json, "print everything as one JSON object, sizes in bytes");
  command->footer(
      "Prefill is predicted for a prompt of 512 tokens, decoding for a half-full context, both for all "
      "prompts\n"
      "together. Placements are ordered by the time for a prompt of 512 tokens and an answer of 128.");
  command->callback([options] { plan(*options); });
}

}  // namespace tandem::tools
