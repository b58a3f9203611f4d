#include "tools/convert/convert.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <new>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "gguf/split_writer.h"
#include "tools/convert/architectures.h"
#include "tools/convert/tensor_converter.h"
#include "tools/convert/tokenizer.h"
#include "tools/overwrite.h"
#include "tools/quantize/mix.h"

namespace tandem::tools {
namespace {

FileType file_type_of(OutType type, const std::vector<TensorMapping>& tensors) {
  for (const TensorMapping& mapping : tensors) {
    if (mapping.dtype == DType::MXFP4) return FileType::MXFP4;
    if (mapping.dtype == DType::NVFP4) return FileType::NVFP4;
  }
  switch (type) {
    case OutType::F32: return FileType::F32;
    case OutType::BF16: return FileType::BF16;
    case OutType::Q8_0: return FileType::Q8_0;
    case OutType::automatic:
    case OutType::F16: break;
  }
  return FileType::F16;
}

// Size label of the weights of one expert plus the shared ones, and the number of experts: "8x7.2B".
std::string size_label_of(const std::vector<TensorMapping>& tensors, int64_t n_expert) {
  int64_t n_weights = 0;
  for (const TensorMapping& mapping : tensors) {
    const bool of_experts = n_expert > 0 && mapping.name.find("_exps.") != std::string::npos;
    n_weights += of_experts ? mapping.n_elements() / n_expert : mapping.n_elements();
  }
  return size_label(n_weights, n_expert);
}

// Refuses to overwrite any file of the folder, also files that were not read this time.
void refuse_to_overwrite_folder(const std::string& folder, const std::vector<std::string>& paths) {
  for (const std::string& file : files_in(folder)) {
    if (!file.ends_with(".gguf") && file_exists(file) && !is_folder(file)) refuse_to_overwrite(file, paths);
  }
}

// Returns the model's name: the last meaningful component of the folder's path.
std::string folder_name(const std::string& folder) {
  std::error_code error;
  const auto path = std::filesystem::weakly_canonical(folder, error);
  if (error == std::errc::not_enough_memory) throw std::bad_alloc();  // not another name
  return path.filename().empty() ? "model" : path.filename().string();
}

// The layers after the last that predict tokens further ahead. config.json may count more than the checkpoint has.
int64_t count_mtp_layers(const Checkpoint& checkpoint, const ModelConfig& config) {
  int64_t n = 0;
  while (checkpoint.find_stored(format("model.layers.{}.eh_proj.weight", config.n_layer + n))) ++n;
  return checkpoint.find_stored("mtp.fc.weight") && config.mtp_apart ? 1 : n;
}

Conversion make_conversion(const std::string& folder, const ConvertOptions& options) {
  const JsonObject json = JsonObject::read(folder + "/config.json");
  const ConvertArchitecture& architecture = find_architecture(json);
  ModelConfig config(json, architecture.defaults);
  Conversion out;
  out.folder = folder;
  Metadata& metadata = out.metadata;
  metadata = Metadata(folder);
  metadata.set("general.architecture", Value(std::string(architecture.name)));
  metadata.set("general.type", Value("model"));
  metadata.set("general.name", Value(options.name.empty() ? folder_name(folder) : options.name));
  metadata.set("general.file_type", Value(uint32_t{0}));
  metadata.set("general.quantization_version", Value(uint32_t{2}));
  if (!options.vocab_only) {
    out.checkpoint = std::make_unique<Checkpoint>(folder);
    const int64_t n_mtp = count_mtp_layers(*out.checkpoint, config);
    if (options.mtp && n_mtp == 0)
      throw_error(ErrorCode::usage, "{}: no MTP layers that can be converted, which --mtp asks for", folder);
    config.drops_mtp = config.drops_mtp && !options.mtp;
    if (!config.drops_mtp) {
      config.n_mtp_layers = n_mtp;
    } else if (n_mtp > 0) {
      log_info("{}: converted without its MTP layer (--mtp keeps it, for --spec mtp)", folder);
    }
  }
  add_hparams(architecture, config, metadata, out.tensors);
  add_tokenizer(folder, json, {config.n_vocab, options.pre}, metadata);
  if (options.vocab_only) {
    out.tensors.clear();
    metadata.remove("general.file_type");
    return out;
  }
  for (TensorMapping& mapping : map_tensors(*out.checkpoint, config, architecture.rules))
    out.tensors.push_back(std::move(mapping));
  const OutType type = resolve_out_type(options.type, out.tensors);
  choose_dtypes(out.tensors, type);
  metadata.set("general.size_label", Value(size_label_of(out.tensors, config.n_expert)));
  metadata.set("general.file_type", Value(static_cast<uint32_t>(file_type_of(type, out.tensors))));
  return out;
}

}  // namespace

std::string size_label(int64_t n_weights, int64_t n_expert) {
  struct Unit {
    double size;
    const char* letter;
  };
  constexpr Unit kUnits[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
  const auto n = static_cast<double>(n_weights);
  const Unit& unit =
      *std::find_if(std::begin(kUnits), std::end(kUnits) - 1, [n](const Unit& u) { return n > u.size; });
  const int n_decimals = std::round(n / unit.size) < 10 ? 1 : 0;
  const std::string experts = n_expert > 0 ? std::to_string(n_expert) + "x" : "";
  return experts + format("{:.{}f}{}", n / unit.size, n_decimals, unit.letter);
}

uint64_t Conversion::n_bytes() const {
  uint64_t n = 0;
  for (const TensorMapping& mapping : tensors) n += mapping.n_bytes();
  return n;
}

Conversion prepare_conversion(const std::string& folder, const ConvertOptions& options) {
  if (!file_exists(folder)) {
    throw_error(ErrorCode::io, "{}: no such folder: needed a model folder with config.json",
                printable(folder, 4096));
  }
  if (!is_folder(folder)) {
    throw_error(ErrorCode::io, "{}: cannot read: it is not a folder", printable(folder, 4096));
  }
  try {
    return make_conversion(folder, options);
  } catch (const Json::exception& e) {  // e.g. an object where a string is expected
    throw_error(ErrorCode::bad_file, "{}: a JSON file has an unexpected structure: {}", folder,
                json_error_text(e));
  }
}

std::vector<std::string> write_conversion(const Conversion& conversion, const ConvertOptions& options,
                                          const std::string& path,
                                          const std::function<void(ConvertProgress)>& progress) {
  SplitWriter writer(path);
  for (const Metadata::Entry& entry : conversion.metadata.entries())
    writer.metadata().set(entry.key, entry.value);
  for (const TensorMapping& mapping : conversion.tensors)
    writer.add_tensor(mapping.name, mapping.dtype, mapping.dims);
  if (options.max_bytes > 0) writer.split({.max_bytes = options.max_bytes});
  const std::vector<std::string> paths = writer.paths();
  refuse_to_overwrite_folder(conversion.folder, paths);
  refuse_other_kinds(FileKind::model, paths);
  ThreadPool pool(options.n_threads);
  TensorConverter converter(pool);
  uint64_t n_done = 0;
  for (size_t i = 0; i < conversion.tensors.size(); ++i) {
    const TensorMapping& mapping = conversion.tensors[i];
    writer.begin_tensor(mapping.name);
    converter.convert(mapping, [&](std::span<const std::byte> bytes) {
      writer.append(bytes);
      n_done += bytes.size();
      if (progress) progress({i, false, n_done});
    });
    if (progress) progress({i, true, n_done});
  }
  writer.finish();
  return paths;
}

}  // namespace tandem::tools
