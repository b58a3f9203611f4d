// tandem plan: predicts the memory, placement and speed of a model before it runs, for the devices of this
// machine or for a GPU that the machine does not have.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>

#include "base/log.h"
#include "base/text.h"
#include "plan/imagined_device.h"
#include "plan/rates.h"
#include "setup/backends.h"
#include "tools/batch/batch_context.h"
#include "tools/closest_name.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/expert_stats.h"
#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/plan/hosts.h"
#include "tools/plan/report.h"
#include "tools/setup.h"
#include "tools/synth/shape_model.h"

namespace tandem::tools {
namespace {

struct PlanOptions : CommandOptions {
  bool sandbox = true;
  std::optional<KnownGpu> gpu;
  std::optional<size_t> vram;
  int64_t n_gpus = 1;                                                        // of those imagined
  std::optional<double> vram_bw, pcie_bw, peer_bw, ram_bw, cpu_bw, disk_bw;  // bytes per second
  int32_t parallel = 1;
  std::string type;  // file type of a model that is named without a file
  std::string expert_stats;
  std::string hosts;  // file
  enum class Format { text, json, svg } format = Format::text;

  bool imagines_gpu() const { return gpu || vram; }
};

std::vector<KnownGpu> known_gpus() {
  return backends().known_gpus();
}

std::vector<std::string_view> names_of(const std::vector<KnownGpu>& gpus) {
  std::vector<std::string_view> names;
  for (const KnownGpu& gpu : gpus) names.push_back(gpu.name);
  return names;
}

// "rtx4090", "RTX 4090", "NVIDIA GeForce RTX 4090" and "4090" are the same GPU.
KnownGpu parse_gpu(const std::string& name) {
  const std::vector<KnownGpu> gpus = known_gpus();
  const std::vector<std::string_view> names = names_of(gpus);
  std::string model = name;
  for (const char* maker : {"nvidia", "geforce"}) {
    const size_t at = lower_case(model).find(maker);
    if (at != std::string::npos) model.erase(at, std::string_view(maker).size());
  }
  for (const std::string& spelled : {model, "rtx" + model}) {
    for (const KnownGpu& gpu : gpus) {
      if (is_same_name(spelled, gpu.name)) return gpu;
    }
  }
  const bool is_number = !model.empty() && model[0] >= '0' && model[0] <= '9';
  throw_unknown_name("--gpu", is_number ? "rtx" + model : name, names,
                     "describe another GPU with --vram, --vram-bw and --pcie-bw");
}

void add_machine_options(CLI::App& app, PlanOptions& o) {
  const char* group = "The machine to plan for (default: this one)";
  const auto bandwidth = [&app, group](const char* name, const char* help, std::optional<double>& target) {
    choice(app, name, "GB/s", help, "", [name, &target](const std::string& text) {
      const double value = parse_real(name, text, 0);
      if (!(value > 0) || std::isinf(value))
        throw_error(ErrorCode::usage, "{}: found {}, needed a number above 0", name, text);
      target = value * 1e9;
    }).group(group);
  };
  std::string names = "plan for this GPU:";
  for (const KnownGpu& gpu : known_gpus())
    names += (names.back() == ':' ? " " : ", ") + std::string(gpu.name);
  choice(app, "--gpu", "NAME", names.c_str(), "", [&o](const std::string& text) {
    o.gpu = parse_gpu(text);
  }).group(group);
  choice(app, "--vram", "SIZE", "memory size of the GPU", "", [&o](const std::string& text) {
    o.vram = parse_bytes("--vram", text);
    if (*o.vram == 0) throw_error(ErrorCode::usage, "--vram: found 0, needed a size above 0");
  }).group(group);
  choice(app, "--gpus", "N", "how many such GPUs", "1", [&o](const std::string& text) {
    o.n_gpus = parse_integer("--gpus", text, 1, 64);
  }).group(group);
  bandwidth("--vram-bw", "bandwidth of the GPU's memory", o.vram_bw);
  bandwidth("--pcie-bw", "bandwidth of copies from the host to the GPU", o.pcie_bw);
  bandwidth("--peer-bw",
            "bandwidth from GPU to GPU for sums, as of NVLink (default: the known GPU's; without it, sums go "
            "over host memory)",
            o.peer_bw);
  bandwidth("--ram-bw", "bandwidth of host memory", o.ram_bw);
  bandwidth("--cpu-bw", "rate at which the CPU reads weights while computing (default: as --ram-bw)",
            o.cpu_bw);
  text(app, "--hosts", o.hosts, "FILE",
       "plan for these machines, whose ranks divide the layers as in tandem run --mpi (see the README)")
      .group(group);
  bandwidth("--disk-bw", "rate of reading the model from disk", o.disk_bw);
}

// The devices to plan for, and their speeds.
struct Machine {
  std::vector<std::unique_ptr<DeviceModel>> devices;
  std::vector<DeviceRates> rates;
};

Machine machine_with(const EngineOptions& options) {
  auto devices = make_devices(options);
  check_devices(options.offload, devices);  // before the seconds that the speeds take
  std::vector<DeviceRates> rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
  return {{std::make_move_iterator(devices.begin()), std::make_move_iterator(devices.end())},
          std::move(rates)};
}

// A typical GPU: 500 GB/s, 60 operations per byte, and a PCIe 4 bus.
DeviceRates usual_gpu_rates() {
  constexpr double kBytesPerS = 0.8 * 500e9;
  return {kBytesPerS, 60 * 1.25 * kBytesPerS, 0.85 * 31.5e9, 8e-6, 2e-6};
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
    gpu = usual_gpu_rates();
  }
  if (o.vram_bw) gpu.read_bytes_per_s = *o.vram_bw;
  if (o.pcie_bw) gpu.bus_bytes_per_s = *o.pcie_bw;
  if (!o.gpu) gpu.ops_per_s = 60 * gpu.read_bytes_per_s * 1.25;
  if (o.peer_bw) {
    gpu.peer_bytes_per_s = *o.peer_bw;
    gpu.peer_s = DeviceRates::kUsualPeerS;
  }
  const size_t memory = o.vram.value_or(o.gpu ? static_cast<size_t>(o.gpu->memory_gib * (1 << 30)) : 0);
  const std::string name = o.gpu ? std::string(o.gpu->name) : "GPU";
  for (int64_t i = 0; i < o.n_gpus; ++i) {
    machine.devices.push_back(
        std::make_unique<ImaginedDevice>(o.n_gpus == 1 ? name : format("{} {}", name, i), memory,
                                         o.gpu ? o.gpu->weight_bytes : backends().usual_weight_bytes(),
                                         o.gpu ? o.gpu->dtype_support : backends().usual_dtype_support()));
    machine.rates.push_back(gpu);
  }
  return machine;
}

Machine machine_of(const PlanOptions& o) {
  Machine machine;
  if (o.imagines_gpu()) {
    machine = imagined_machine(o);
  } else {
    if (o.vram_bw || o.pcie_bw || o.peer_bw || o.n_gpus > 1)
      throw_error(ErrorCode::usage, "--vram-bw, --pcie-bw, --peer-bw and --gpus need --vram or --gpu");
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
  if (o.parallel > 1) set_batch_context(shape, o.parallel, model.hparams().n_ctx_usable());
  if (shape.n_ubatch <= 0) shape.n_ubatch = automatic_ubatch(model.architecture(), devices.size());
  return {model.architecture(),     model.weights(), devices, o.engine.offload, shape, rates,
          model.may_leave_on_disk()};
}

KnownGpu usual_gpu() {
  KnownGpu gpu;
  gpu.name = "GPU";
  gpu.rates = usual_gpu_rates();
  gpu.weight_bytes = backends().usual_weight_bytes();
  gpu.dtype_support = backends().usual_dtype_support();
  return gpu;
}

// What to plan for: a file, or the shape of a known model.
struct PlannedModel {
  ModelHeader file;  // empty for a shape
  std::unique_ptr<Model> model;
  std::string name, description;
  // Whether the weights are on a disk whose speed can be measured.
  bool is_on_disk() const { return !file.path.empty() && !file.temporary; }
};

const Shape* shape_named(const std::string& name) {
  for (const Shape& shape : all_shapes()) {
    if (is_same_name(name, shape.name) || is_same_name(name, std::string(shape.name) + "-instruct"))
      return &shape;
  }
  return nullptr;
}

FileType parse_type(const std::string& name) {
  if (const std::optional<FileType> type = file_type_from_name(name)) return *type;
  std::vector<std::string_view> names;
  for (const FileTypeInfo& info : all_file_types()) names.push_back(info.name);
  throw_unknown_name("--type", name, names);
}

PlannedModel planned_shape(const PlanOptions& o, const Shape& shape) {
  const FileType type = parse_type(o.type.empty() ? "Q4_K_M" : o.type);
  PlannedModel planned;
  planned.model = load_shape(shape, {.type = type}, o.engine.model);
  planned.name = shape.name;
  planned.description = format("{}, {:.1f}B weights as {}, a file of {}", shape.title,
                               static_cast<double>(planned.model->n_params()) / 1e9,
                               file_type_info(type).name, size_text(planned.model->n_weight_bytes()));
  return planned;
}

PlannedModel planned_model(PlanOptions& o, Confinement& confinement) {
  const std::string& path = o.engine.model.path;
  if (path.empty() && o.hub.empty()) {
    throw_error(ErrorCode::usage,
                "no model: name a GGUF file, a known model such as llama-3.1-8b, or USER/REPO on the hub");
  }
  std::error_code ignored;
  if (!path.empty() && !std::filesystem::exists(path, ignored)) {
    if (const Shape* shape = shape_named(path)) return planned_shape(o, *shape);
    if (path.find('/') == std::string::npos && !path.ends_with(".gguf"))
      throw_unknown_name("no file and no known model", path, shape_names());
  }
  if (!o.type.empty()) throw_error(ErrorCode::usage, "--type is for models that are named without a file");
  PlannedModel planned;
  planned.file = model_header(path, o.hub);
  o.engine.model.path = planned.file.path;
  confinement.runs(o.engine).measures().reads_header(planned.file).reads(o.expert_stats).begin();
  planned.model = load_model(o.engine);
  planned.name = planned.file.name;
  planned.description = planned.model->description();
  return planned;
}

std::string report_text(const PlanReport& report, PlanOptions::Format format) {
  switch (format) {
    case PlanOptions::Format::text: return plan_text(report);
    case PlanOptions::Format::json: return plan_json(report);
    case PlanOptions::Format::svg: return plan_svg(report);
  }
  return "";
}

void plan_for_hosts(const PlanOptions& o, std::vector<PlannedHost> hosts, const PlannedModel& planned) {
  if (o.imagines_gpu() || o.vram_bw || o.pcie_bw || o.peer_bw || o.ram_bw || o.cpu_bw || o.disk_bw ||
      o.n_gpus > 1)
    throw_error(ErrorCode::usage,
                "--hosts describes the machines: leave out --gpu, --gpus, --vram and --*-bw");
  if (o.format == PlanOptions::Format::svg)
    throw_error(ErrorCode::usage, "--hosts has its report as text or JSON: leave out --output svg");
  EngineOptions host_only;
  host_only.devices = o.engine.devices;
  host_only.devices.no_gpus = true;
  auto devices = make_devices(host_only);
  const std::vector<DeviceRates> rates = rates_of(pointers(devices), RatesCache(RatesCache::usual_path()));
  if (rates.empty()) throw_error(ErrorCode::out_of_memory, "not enough memory to measure speeds");
  EngineOptions engine = o.engine;
  const auto load = [&engine, &o] {
    const Shape* shape = shape_named(engine.model.path);
    if (shape == nullptr) return load_model(engine);
    return load_shape(*shape, {.type = parse_type(o.type.empty() ? "Q4_K_M" : o.type)}, engine.model);
  };
  const HostsRequest request{std::move(hosts),      planned.name, planned.description, load,       o.engine,
                             std::move(devices[0]), rates[0],     parse_gpu,           usual_gpu()};
  Output out;
  const HostsPlan plan = plan_hosts(request);
  out.write(o.format == PlanOptions::Format::json ? hosts_json(request, plan) : hosts_text(request, plan));
  out.flush();
}

void plan(PlanOptions& o) {
  apply_log_options(o.log);
  check_options(o.engine);
  std::vector<PlannedHost> hosts;
  if (!o.hosts.empty()) hosts = parse_hosts(read_text_file(o.hosts, 1 << 20), o.hosts);
  Confinement confinement(o.sandbox);
  const PlannedModel planned = planned_model(o, confinement);
  if (!hosts.empty()) return plan_for_hosts(o, std::move(hosts), planned);
  const ExpertStats expert_stats(o.expert_stats, planned.model->hparams(), o.engine);
  Machine machine = machine_of(o);
  if (o.disk_bw) {
    machine.rates[0].disk_bytes_per_s = *o.disk_bw;
  } else if (!o.imagines_gpu() && planned.is_on_disk()) {
    machine.rates[0].disk_bytes_per_s = disk_rate(*planned.model, o.engine);
  }
  const PlanRequest request = plan_request(o, *planned.model, machine.devices, machine.rates);
  const PlanReport report = make_plan_report(request, planned.name, planned.description);
  Output out;
  out.write(report_text(report, o.format));
  out.flush();
}

}  // namespace

void add_plan(CLI::App& app) {
  CLI::App& command = add_command(app, "plan", "predict memory, placement and speed before running");
  const auto options = std::make_shared<PlanOptions>();
  add_model_options(command, *options);
  text(command, "--type", options->type, "TYPE",
       "file type of a known model that is named without a file, such as llama-3.1-8b (default: Q4_K_M)")
      .default_str("")
      .group("Model");
  add_context_options(command, options->engine.context, options->flash_attention);
  choice(command, "--batch", "N", "same as --ubatch-size", "", [options](const std::string& text) {
    options->engine.context.n_ubatch = parse_integer("--batch", text, 1);
    options->engine.context.n_ubatch_given = true;
  }).group("Context");
  integer(command, "--parallel", options->parallel, 1,
          "number of prompts answered at once, as in tandem batch")
      .group("Context");
  add_machine_options(command, *options);
  add_offload_options(command, options->engine, options->explain);
  add_expert_stats_option(command, options->expert_stats);
  add_thread_options(command, options->engine.devices);
  add_rope_options(command, options->engine.model.rope);
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  choice(command, "-o,--output", "FORMAT",
         "format of the report: text, json (sizes in bytes) or svg (a picture)", "text",
         [options](const std::string& value) {
           using enum PlanOptions::Format;
           options->format =
               one_of<PlanOptions::Format>("--output", value, {{"text", text}, {"json", json}, {"svg", svg}});
         });
  call_flag(command, "--json", "same as --output json",
            [options] { options->format = PlanOptions::Format::json; });
  set_footer(
      command,
      "Prefill is predicted for a prompt of 512 tokens, decoding for a half-full context, both for all "
      "prompts\n"
      "together. Placements are ordered by the time for a prompt of 512 tokens and an answer of 128.");
  set_callback(command, [options] { plan(*options); });
}

}  // namespace tandem::tools
