#include "tools/options/offload.h"

#include <cmath>

#include "base/text.h"
#include "setup/backends.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

constexpr int64_t kAll = int64_t{1} << 30;  // more layers than any model has
constexpr const char* kGpuGroup = "GPU";

std::vector<std::string> cut(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find_first_of(separators, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

// "CPU, SIM0": the first device of each backend.
std::string device_examples() {
  const Registry registry = backends();
  std::string names = registry.backends().front().name;
  for (const Backend& backend : registry.gpu_backends()) names += ", " + backend.name + "0";
  return names;
}

void add_placement_options(CLI::App& app, OffloadOptions& f) {
  choice(app, "--n-gpu-layers,--gpu-layers", "N|all|auto",
         "put the last N layers on GPUs; one more than the model has adds the output head", "auto",
         [&f](const std::string& value) { f.n_gpu_layers = parse_gpu_layers(value); })
      .group(kGpuGroup);
  switch_flag(app, "--no-kv-offload",
              "keep the KV cache in host memory and attend on the CPU, to prompts on the GPU if it has room for "
              "two layers' cache",
              [&f](bool on) { f.kv_on_host = on_or_off(on); })
      .group(kGpuGroup);
  bare_choice(app, "--kv-offload", "on|prefetch", "on",
              "on: keep the KV cache of GPU layers on the GPU; prefetch: keep it in host memory and copy "
              "each layer's "
              "to the GPU while the layers before it compute",
              [&f](const std::string& value) {
                f.kv_prefetched = one_of<bool>("--kv-offload", value, {{"on", false}, {"prefetch", true}});
                if (!f.kv_prefetched) f.kv_on_host = Toggle::off;
              })
      .group(kGpuGroup);
  choice(
      app, "--kv-split", "N",
      "keep the cache of the newest N tokens on the GPU (hot) and that of older ones in host memory (cold); "
      "both sides compute attention at the same time",
      "", [&f](const std::string& value) { f.kv_split = parse_integer("--kv-split", value, 1); })
      .group(kGpuGroup);
  choice(app, "--kv-layers-gpu", "N", "keep only the cache of the last N layers on GPUs", "",
         [&f](const std::string& value) { f.n_kv_layers_gpu = parse_integer("--kv-layers-gpu", value, 0); })
      .group(kGpuGroup);
  const std::string override_help = "run layers with matching tensor names on this device (" +
                                    device_examples() +
                                    ", ...); comma-separated or repeated, the first match wins";
  repeated(app, "--override-tensor", "REGEX=DEVICE", override_help.c_str(),
           [&f](const std::vector<std::string>& values) {
             for (const std::string& value : values) {
               for (auto& pair : parse_overrides(value)) f.tensor_overrides.push_back(std::move(pair));
             }
           })
      .group(kGpuGroup);
  call_flag(app, "--cpu-moe", "keep the experts of all layers on the CPU", [&f] {
    f.n_cpu_moe = kAll;
  }).group(kGpuGroup);
  choice(app, "--n-cpu-moe", "N", "keep the experts of the first N layers on the CPU", "",
         [&f](const std::string& value) { f.n_cpu_moe = parse_integer("--n-cpu-moe", value, 0); })
      .group(kGpuGroup);
  choice(
      app, "--expert-cache", "SIZE|auto|off",
      "most memory of each GPU for experts that it keeps of layers whose experts are on the CPU or on disk",
      "auto",
      [&f](const std::string& value) {
        if (value == "auto") {
          f.expert_cache.reset();
        } else {
          f.expert_cache = value == "off" ? 0 : parse_bytes("--expert-cache", value);
        }
      })
      .group(kGpuGroup);
  choice(app, "--split-mode", "none|layer|tensor|auto",
         "with several GPUs: use only one, distribute whole layers, or divide each layer's heads, rows and "
         "experts over all of them; auto: by predicted time, which --explain shows",
         "auto",
         [&f](const std::string& value) {
           if (value == "row") {
             throw Error(ErrorCode::usage,
                         "--split-mode row: use tensor, which divides each layer over the GPUs, or layer");
           }
           f.split_mode = one_of<SplitMode>("--split-mode", value,
                                            {{"none", SplitMode::none},
                                             {"layer", SplitMode::layer},
                                             {"tensor", SplitMode::tensor},
                                             {"auto", SplitMode::automatic}});
         })
      .group(kGpuGroup);
  choice(app, "--tensor-split", "N,N,...",
         "proportion of layers, or with --split-mode tensor of each layer, for each GPU (default: by free "
         "memory)",
         "", [&f](const std::string& value) { f.tensor_split = parse_tensor_split(value); })
      .group(kGpuGroup);
  choice(app, "--main-gpu", "N", "GPU to use where the split mode is none", "0",
         [&f](const std::string& value) { f.main_gpu = parse_integer("--main-gpu", value, 0); })
      .group(kGpuGroup);
}

void add_disk_options(CLI::App& app, OffloadOptions& f) {
  bare_choice(
      app, "--disk-tier", "on|off|auto", "on",
      "read layers that do not fit in host memory (or --max-ram) from disk for every step, ahead of use and "
      "past the page cache; of mixtures that the CPU computes only the experts that tokens choose; off: map "
      "them and let the system page them in (default: auto)",
      [&f](const std::string& value) { f.disk = parse_toggle("--disk-tier", value); })
      .group(kGpuGroup);
}

// A number with no more than `max`, as "0.9" of --gpu-memory-utilization.
double parse_share(const char* option, const std::string& text, double max) {
  const double value = parse_real(option, text, 0);
  if (value > max)
    throw_error(ErrorCode::usage, "{}: {} is too large, it must be {:g} or less", option, printable(text),
                max);
  return value;
}

void add_stream_options(CLI::App& app, OffloadOptions& f) {
  bare_choice(app, "--stream-weights", "on|off|auto", "on",
              "stream weights in host memory to the GPU for every step, each layer while the layers before "
              "it compute "
              "(default: auto, if predicted to be faster)",
              [&f](const std::string& value) { f.stream = parse_toggle("--stream-weights", value); })
      .group(kGpuGroup);
  choice(app, "--gpu-rows", "auto|off|P",
         "divide matrices in host memory: stream P percent of the rows to the GPU for every step and let the "
         "CPU "
         "compute the others at the same time",
         "auto, if predicted to be faster",
         [&f](const std::string& value) { f.gpu_rows = parse_gpu_rows(value); })
      .group(kGpuGroup);
  bare_choice(app, "--pin-weights", "on|off|auto", "on",
              "page-lock weights and caches in host memory that GPUs fetch often, which is faster "
              "(default: auto, if all that the host holds fits in its memory)",
              [&f](const std::string& value) { f.pin = parse_toggle("--pin-weights", value); })
      .group(kGpuGroup);
  bare_choice(app, "--huge-pages", "on|off|auto", "on",
              "move the mapped weights that the CPU computes with to huge pages, which it reads faster "
              "(default: auto, in long texts, if they fit in memory beside the file)",
              [&f](const std::string& value) { f.huge_pages = parse_toggle("--huge-pages", value); })
      .group("Model");
  choice(app, "--gpu-weights-percent", "P", "keep P percent of the weights on GPUs and stream the rest", "",
         [&f](const std::string& value) {
           f.gpu_weights_percent = parse_share("--gpu-weights-percent", value, 100);
         })
      .group(kGpuGroup);
  choice(
      app, "--cpu-offload-gb", "N", "keep N GiB of the weights in host memory and stream them", "",
      [&f](const std::string& value) { f.cpu_offload_gib = parse_share("--cpu-offload-gb", value, 1 << 20); })
      .group(kGpuGroup);
}

void add_budget_options(CLI::App& app, EngineOptions& o) {
  Budgets& b = o.offload.budgets;
  choice(app, "--max-vram", "SIZE", "limit on each GPU's memory (8GiB, 500MiB)", "",
         [&b](const std::string& value) { b.max_vram = parse_bytes("--max-vram", value); })
      .group(kGpuGroup);
  choice(app, "--max-ram", "SIZE", "limit on host memory, including mapped weights", "",
         [&b](const std::string& value) { b.max_ram = parse_bytes("--max-ram", value); })
      .group(kGpuGroup);
  choice(app, "--gpu-memory-utilization", "X", "limit on each GPU's memory as a share, such as 0.9", "",
         [&b](const std::string& value) {
           b.vram_utilization = parse_share("--gpu-memory-utilization", value, 1);
         })
      .group(kGpuGroup);
  flag(app, "--fit,!--no-fit", o.offload.choose_by_speed,
       "choose everything left open (layers, experts, cache, micro-batch, streaming) by predicted speed, "
       "from speeds measured once (default: on)")
      .group(kGpuGroup);
  flag(app, "--oom-ladder,!--no-oom-ladder", o.oom_ladder,
       "when memory runs out, continue with a smaller micro-batch, then the KV cache on the host, then "
       "layers on the host, instead of stopping with an error (default: on)")
      .group(kGpuGroup);
  flag(app, "--fit-kv-quant", o.offload.may_quantize_kv,
       "allow --fit to choose a quantized KV cache, which loses precision")
      .group(kGpuGroup);
}

}  // namespace

size_t parse_bytes(const std::string& option, const std::string& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit = lower_case(text.substr(end));
  static constexpr std::pair<const char*, double> kUnits[] = {{"", 1},
                                                              {"b", 1},
                                                              {"k", 1024.0},
                                                              {"kib", 1024.0},
                                                              {"kb", 1e3},
                                                              {"m", 1048576.0},
                                                              {"mib", 1048576.0},
                                                              {"mb", 1e6},
                                                              {"g", 1073741824.0},
                                                              {"gib", 1073741824.0},
                                                              {"gb", 1e9},
                                                              {"t", 1099511627776.0},
                                                              {"tib", 1099511627776.0},
                                                              {"tb", 1e12}};
  for (const auto& [name, factor] : kUnits) {
    if (unit != name || end == 0) continue;
    const double bytes = parse_real(option, text.substr(0, end), 0) * factor;
    if (bytes > 1e18) throw_error(ErrorCode::usage, "{}: {} is too large", option, printable(text));
    return static_cast<size_t>(bytes);
  }
  throw_error(ErrorCode::usage, "{}: '{}' is not a size like 8GiB or 500MiB", option, printable(text));
}

std::optional<int64_t> parse_gpu_layers(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "all") return kAll;
  const int64_t n = parse_integer("--n-gpu-layers", text, -1);
  return n < 0 ? kAll : n;
}

std::optional<double> parse_gpu_rows(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "off") return 1.0;
  const std::string number = text.ends_with('%') ? text.substr(0, text.size() - 1) : text;
  const double percent = parse_share("--gpu-rows", number, 100);
  if (!(percent > 0 && percent < 100)) {
    throw_error(ErrorCode::usage,
                "--gpu-rows: {} must be more than 0 and less than 100 percent (--stream-weights on lets the "
                "GPU compute all rows, --stream-weights off none)",
                printable(text));
  }
  return percent / 100;
}

std::vector<std::pair<std::string, std::string>> parse_overrides(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const std::string& part : cut(text, ",")) {
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == part.size()) {
      throw_error(ErrorCode::usage, "--override-tensor: '{}' is not REGEX=DEVICE", printable(part));
    }
    list.emplace_back(part.substr(0, equals), part.substr(equals + 1));
  }
  return list;
}

std::vector<double> parse_tensor_split(const std::string& text) {
  std::vector<double> shares;
  for (const std::string& part : cut(text, ",/")) {
    shares.push_back(parse_real("--tensor-split", part, 0));
    if (std::isinf(shares.back())) throw_error(ErrorCode::usage, "--tensor-split: a share must be finite");
  }
  return shares;
}

void add_offload_options(CLI::App& app, EngineOptions& o, bool& explain) {
  add_placement_options(app, o.offload);
  add_stream_options(app, o.offload);
  add_disk_options(app, o.offload);
  add_budget_options(app, o);
  choice(app, "--device", "DEVICE,...", "use these GPUs, none: only the CPU (default: all)", "",
         [&o](const std::string& value) {
           o.devices.no_gpus = value == "none";
           if (!o.devices.no_gpus) o.devices.gpus = cut(value, ",");
         })
      .group(kGpuGroup);
  call_flag(app, "--list-devices", "list the devices of this machine and exit",
            [] { print_and_exit(device_table(make_devices({}))); })  // no model is needed for this

      .trigger_on_parse()
      .group(kGpuGroup);
  flag(app, "--explain", explain,
       "before running, show the placement of every layer, its experts and its cache, in bytes")
      .group(kGpuGroup);
}

}  // namespace tandem::tools
