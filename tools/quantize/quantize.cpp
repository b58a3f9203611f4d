#include "tools/quantize/quantize.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "gguf/split_writer.h"
#include "tools/matrix_factor.h"
#include "tools/overwrite.h"
#include "tools/quantize/rows.h"

namespace tandem::tools {
namespace {

bool is_token_embd(std::string_view name) {
  return name == "token_embd.weight" || name == "per_layer_token_embd.weight";
}

// Reads a count that some models give per layer.
int first_count(const Metadata& metadata, const std::string& key, int fallback) {
  const Value* value = metadata.find(key);
  if (!value || !value->is_array()) return metadata.get_or<int32_t>(key, fallback);
  const std::vector<int32_t> counts = metadata.get_vector<int32_t>(key);
  return counts.empty() ? fallback : counts.front();
}

MixModel mix_model(const GgufFile& file, const QuantizeOptions& options, bool has_imatrix) {
  const Metadata& metadata = file.metadata();
  MixModel model;
  model.arch = metadata.get<std::string_view>("general.architecture");
  const std::string prefix = std::string(model.arch) + ".";
  model.n_layer = metadata.get_or<int32_t>(prefix + "block_count", 0);
  model.n_head = first_count(metadata, prefix + "attention.head_count", 0);
  model.n_head_kv = first_count(metadata, prefix + "attention.head_count_kv", model.n_head);
  model.n_expert = metadata.get_or<int32_t>(prefix + "expert_count", 0);
  model.has_imatrix = has_imatrix;
  model.output_dtype = options.output_dtype;
  return model;
}

std::optional<DType> forced_dtype(const QuantizeOptions& options, const TensorInfo& tensor) {
  if (tensor.name == "output.weight" && options.leave_output) return tensor.dtype;
  if (is_token_embd(tensor.name) && options.token_embd_dtype) return options.token_embd_dtype;
  if (tensor.name == "output.weight" && options.output_dtype) return options.output_dtype;
  if (!is_quantized(file_type_info(*options.type).base)) return std::nullopt;  // as llama-quantize does
  for (const DTypeRule& rule : options.rules) {
    if (rule.regex.found_in(tensor.name)) return rule.dtype;
  }
  return std::nullopt;
}

std::vector<DType> choose_dtypes(const GgufFile& file, const QuantizeOptions& options,
                                 const ImportanceMatrix* imatrix, size_t& n_fallback) {
  std::vector<MixTensor> tensors;
  for (const TensorInfo& t : file.tensors()) {
    tensors.push_back({t.name, {t.dims[0], t.dims[1], t.dims[2], t.dims[3]}, t.dtype});
    if (options.type) {
      tensors.back().forced = forced_dtype(options, t);
    } else {
      tensors.back().forced = t.dtype;
    }
    const DType wanted =
        tensors.back().forced.value_or(options.type ? file_type_info(*options.type).base : t.dtype);
    n_fallback += may_quantize(tensors.back()) && t.dims[0] % dtype_info(wanted).block_elements != 0;
  }
  return quant_mix(options.type.value_or(FileType::F32), mix_model(file, options, imatrix != nullptr),
                   tensors, options.mix);
}

// Throws if the tensor cannot or should not be converted.
void check_source(const GgufFile& file, const TensorInfo& source, DType dtype, bool allow_requantize) {
  if (source.dtype == dtype) return;
  const std::string name = printable(source.name), from(dtype_name(source.dtype)), to(dtype_name(dtype));
  const char* path = file.part_path(source.part).c_str();
  if (!dtype_info(source.dtype).to_float) {
    throw_error(ErrorCode::bad_file, "{}: tensor {} is {}, which this program cannot convert to {}", path,
                name, from, to);
  }
  if (is_quantized(source.dtype) && !allow_requantize) {
    throw_error(ErrorCode::bad_file,
                "{}: tensor {} is already {}; converting it to {} loses quality (--allow-requantize does it "
                "anyway)",
                path, name, from, to);
  }
}

// Returns nullptr if the matrix has no importance for this tensor.
const std::vector<float>* importance_of(const ImportanceMatrix& imatrix, const TensorInfo& tensor) {
  const std::vector<float>* values = imatrix.find(tensor.name);
  if (!values || values->size() == static_cast<size_t>(tensor.dims[0] * tensor.dims[2])) return values;
  if (is_token_embd(tensor.name)) return nullptr;  // counted by token, not by column
  throw_error(ErrorCode::bad_file, "{}: importance of {}: found {} values, needed {} for {}", imatrix.path,
              printable(tensor.name), values->size(), tensor.dims[0] * tensor.dims[2], tensor.shape_text());
}

void warn_missing_importance(const ImportanceMatrix& imatrix, const std::vector<std::string>& missing) {
  if (missing.empty()) return;
  constexpr size_t kShown = 4;
  std::string names;
  for (size_t i = 0; i < std::min(missing.size(), kShown); ++i) names += (i ? ", " : "") + missing[i];
  log_warning("{} has no importance for {} tensors, which are quantized without it: {}{}", imatrix.path,
              missing.size(), names, missing.size() > kShown ? ", ..." : "");
}

void set_metadata(const GgufFile& file, const QuantizeOptions& options, const ImportanceMatrix* imatrix,
                  Metadata& metadata) {
  metadata = file.metadata();
  if (options.type) metadata.set("general.file_type", Value(static_cast<uint32_t>(*options.type)));
  metadata.set("general.quantization_version", Value(uint32_t{2}));
  if (!imatrix) return;
  constexpr size_t kMaxLength = 127;  // as other programs write
  metadata.set("quantize.imatrix.file", Value(imatrix->path.substr(0, kMaxLength)));
  if (!imatrix->dataset.empty()) {
    metadata.set("quantize.imatrix.dataset", Value(imatrix->dataset.substr(0, kMaxLength)));
  }
  metadata.set("quantize.imatrix.entries_count", Value(static_cast<uint32_t>(imatrix->entries.size())));
  if (imatrix->n_chunks > 0) metadata.set("quantize.imatrix.chunks_count", Value(imatrix->n_chunks));
}

// The tensor for the factors of a matrix that becomes NVFP4, whose own scales are multiples of 2^-9 near zero, too coarse for small
// weights. Empty where files cannot have it.
std::string scale_name(const GgufFile& file, const TensorInfo& source, DType dtype) {
  const std::string name = factor_name(source.name);
  if (dtype != DType::NVFP4 || source.dtype == dtype || name.empty() || source.dims[3] != 1 || file.find_tensor(name)) return {};
  const bool of_experts = source.name.ends_with("_exps.weight");
  return of_experts && file.find_tensor(std::string(source.name.substr(0, source.name.rfind('.'))) + ".bias") ? std::string() : name;
}

void declare_tensors(const GgufFile& file, const QuantizeJob& job, const QuantizeOptions& options,
                     SplitWriter& writer) {
  std::vector<uint32_t> part_of;
  for (const QuantizedTensor& tensor : job.tensors) {
    writer.add_tensor(tensor.source->name, tensor.dtype,
                      std::span(tensor.source->dims).first(tensor.source->n_dims));
    part_of.push_back(static_cast<uint32_t>(tensor.source->part));
    if (tensor.scale.empty()) continue;
    writer.add_tensor(tensor.scale, DType::F32, std::span(tensor.source->dims).subspan(2, 1));
    part_of.push_back(part_of.back());
  }
  if (!options.keep_split) return;
  writer.split_as(std::move(part_of), static_cast<uint32_t>(file.n_parts()), PartNames::always_numbered);
}

}  // namespace

QuantizeJob prepare_quantize(const GgufFile& file, const QuantizeOptions& options,
                             const ImportanceMatrix* imatrix) {
  QuantizeJob job;
  const std::vector<DType> dtypes = choose_dtypes(file, options, imatrix, job.n_fallback);
  std::vector<std::string> missing;
  for (size_t i = 0; i < dtypes.size(); ++i) {
    const TensorInfo& source = file.tensors()[i];
    check_source(file, source, dtypes[i], options.allow_requantize);
    QuantizedTensor tensor{&source, dtypes[i],
                           row_bytes(dtypes[i], source.dims[0]) * static_cast<uint64_t>(source.n_rows()),
                           nullptr, scale_name(file, source, dtypes[i])};
    if (imatrix && source.dtype != dtypes[i] && is_quantized(dtypes[i])) {
      tensor.importance = importance_of(*imatrix, source);
      const bool expected = !is_token_embd(source.name) && source.name != "output.weight";
      if (!tensor.importance && expected) missing.push_back(printable(source.name));
    }
    job.n_bytes_in += source.n_bytes;
    job.n_bytes_out += tensor.n_bytes + (tensor.scale.empty() ? 0 : sizeof(float) * static_cast<uint64_t>(source.dims[2]));
    job.n_weights += source.n_elements();
    job.tensors.push_back(tensor);
  }
  if (imatrix) warn_missing_importance(*imatrix, missing);
  return job;
}

std::vector<std::string> output_paths(const GgufFile& file, const QuantizeOptions& options,
                                      const std::string& path) {
  if (!options.keep_split) return {path};
  std::vector<std::string> paths;
  const auto n_parts = static_cast<uint32_t>(file.n_parts());
  for (uint32_t part = 0; part < n_parts; ++part) paths.push_back(split_path(path, part, n_parts));
  return paths;
}

void write_quantized(const GgufFile& file, const QuantizeJob& job, const QuantizeOptions& options,
                     const ImportanceMatrix* imatrix, const std::string& path,
                     const std::function<void(QuantizeProgress)>& progress) {
  const std::vector<std::string> outputs = output_paths(file, options, path);
  refuse_to_overwrite(file, outputs);
  if (imatrix) refuse_to_overwrite(imatrix->path, outputs);
  refuse_other_kinds(FileKind::model, outputs);
  SplitWriter writer(path, file.alignment());
  set_metadata(file, options, imatrix, writer.metadata());
  declare_tensors(file, job, options, writer);
  ThreadPool pool(options.n_threads);
  RowConverter converter(pool);
  int64_t n_weights_done = 0;
  for (size_t i = 0; i < job.tensors.size(); ++i) {
    const QuantizedTensor& tensor = job.tensors[i];
    const std::vector<float> factors = tensor.scale.empty() ? std::vector<float>() : converter.nvfp4_factors(*tensor.source);
    writer.begin_tensor(tensor.source->name);
    const std::span<const float> importance =
        tensor.importance ? std::span<const float>(*tensor.importance) : std::span<const float>();
    converter.convert(*tensor.source, file.part_path(tensor.source->part), tensor.dtype, importance, factors,
                      [&](std::span<const std::byte> bytes, int64_t n_weights) {
                        writer.append(bytes);
                        n_weights_done += n_weights;
                        if (progress) progress({i, false, n_weights_done});
                      });
    if (!tensor.scale.empty()) {
      writer.begin_tensor(tensor.scale);
      writer.append(std::as_bytes(std::span(factors)));
    }
    if (progress) progress({i, true, n_weights_done});
  }
  writer.finish();
}

}  // namespace tandem::tools
