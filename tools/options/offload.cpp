#include "tools/options/offload.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "tools/options/types.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

constexpr int64_t kAll = int64_t{1} << 30;  // more layers than any model has
constexpr const char* kGroup = "GPU";

std::vector<std::string> cut(const std::string& text, const char* separators) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find_first_of(separators, begin)) != std::string::npos; begin = end + 1) {
    parts.push_back(text.substr(begin, end - begin));
  }
  parts.push_back(text.substr(begin));
  return parts;
}

void add_placement_options(CLI::App& app, OffloadFlags& f) {
  choice(app, "--n-gpu-layers,--gpu-layers", "N|all|auto",
         "layers on GPUs: the last N, and with one more than the model has the output too", "auto",
         [&f](const std::string& value) { f.n_gpu_layers = parse_gpu_layers(value); })
      ->group(kGroup);
  app.add_flag("--no-kv-offload,!--kv-offload", f.kv_on_host,
               "keep the KV cache in host memory; attention runs beside it on the CPU")
      ->group(kGroup);
  choice(app, "--kv-layers-gpu", "N", "of the layers on GPUs, only the last N keep their cache there", "",
         [&f](const std::string& value) { f.n_kv_layers_gpu = parse_integer("--kv-layers-gpu", value, 0); })
      ->group(kGroup);
  repeated(app, "--override-tensor", "REGEX=DEVICE",
           "run the layers whose tensor names match on that device (CPU, CUDA0, ...); several are separated "
           "by commas; "
           "repeatable, the first match wins",
           [&f](const std::vector<std::string>& values) {
             for (const std::string& value : values) {
               for (auto& pair : parse_overrides(value)) f.overrides.push_back(std::move(pair));
             }
           })
      ->group(kGroup);
  app.add_flag_callback(
         "--cpu-moe", [&f] { f.n_cpu_moe = kAll; }, "keep the experts of all layers on the CPU")
      ->group(kGroup);
  choice(app, "--n-cpu-moe", "N", "keep the experts of the first N layers on the CPU", "",
         [&f](const std::string& value) { f.n_cpu_moe = parse_integer("--n-cpu-moe", value, 0); })
      ->group(kGroup);
  choice(app, "--split-mode", "none|layer", "with several GPUs: use one, or give whole layers to each",
         "layer",
         [&f](const std::string& value) {
           f.split_mode = one_of<SplitMode>("--split-mode", value,
                                            {{"none", SplitMode::none}, {"layer", SplitMode::layer}});
         })
      ->group(kGroup);
  choice(app, "--tensor-split", "N,N,...", "share of each GPU (default: by free memory)", "",
         [&f](const std::string& value) { f.tensor_split = parse_tensor_split(value); })
      ->group(kGroup);
  choice(app, "--main-gpu", "N", "the GPU of --split-mode none", "0", [&f](const std::string& value) {
    f.main_gpu = parse_integer("--main-gpu", value, 0);
  })->group(kGroup);
}

}  // namespace

std::optional<int64_t> parse_gpu_layers(const std::string& text) {
  if (text == "auto") return std::nullopt;
  if (text == "all") return kAll;
  const int64_t n = parse_integer("--n-gpu-layers", text, -1);
  return n < 0 ? kAll : n;
}

std::vector<std::pair<std::string, std::string>> parse_overrides(const std::string& text) {
  std::vector<std::pair<std::string, std::string>> list;
  for (const std::string& part : cut(text, ",")) {
    const size_t equals = part.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == part.size()) {
      throw_error(ErrorCode::usage, "--override-tensor: '%s' is not REGEX=DEVICE", printable(part).c_str());
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

void add_offload_options(CLI::App& app, OffloadOptions& o) {
  add_placement_options(app, o.flags);
  choice(app, "--device", "DEVICE,...", "the GPUs to use, none: the CPU only (default: all)", "",
         [&o](const std::string& value) {
           o.no_devices = value == "none";
           if (!o.no_devices) o.devices = cut(value, ",");
         })
      ->group(kGroup);
  app.add_flag_callback(
         "--list-devices",
         [] { throw CLI::CallForVersion(device_table(make_devices({})), 0); },  // no model is needed for this
         "show the devices of this machine and end")
      ->trigger_on_parse()
      ->group(kGroup);
  app.add_flag("--explain", o.explain,
               "before running, show where every layer, its experts and its cache live, in bytes")
      ->group(kGroup);
}

}  // namespace tandem::tools
