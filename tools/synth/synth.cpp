// tandem synth SHAPE -o FILE: a model in the shape of a public one, with random weights.
#include "tools/synth/synth.h"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "gguf/writer.h"
#include "tools/closest_name.h"
#include "tools/command.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/overwrite.h"
#include "tools/synth/expert_skew.h"
#include "tools/synth/random_vocab.h"
#include "tools/synth/random_weights.h"

namespace tandem::tools {
namespace {

constexpr size_t kChunkBytes = 4 << 20;

// Gives each tensor its own stream, independent of the other tensors.
uint64_t tensor_seed(uint64_t seed, std::string_view name) {
  uint64_t hash = 14695981039346656037u ^ seed * 0x9e3779b97f4a7c15u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

// Weights of a matrix [k, m] have standard deviation 1/sqrt(k), so a product keeps the magnitude of its input
// and logits stay finite and near 1. Norms are about 1.
class Pieces {
 public:
  std::shared_ptr<const RandomPieces> of(const ShapeTensor& tensor, DType dtype) {
    const float keeps_size = 1.0f / std::sqrt(static_cast<float>(tensor.dims[0]));
    switch (tensor.role) {
      case TensorRole::norm: return of(dtype, 0.05f, 1.0f);
      case TensorRole::bias: return of(dtype, 0.05f, 0.0f);
      case TensorRole::decay: return of(dtype, 0.05f, -0.5f);
      default: return of(dtype, keeps_size, 0.0f);
    }
  }

 private:
  std::shared_ptr<const RandomPieces> of(DType dtype, float stddev, float mean) {
    std::shared_ptr<const RandomPieces>& made = made_[{dtype, stddev, mean}];
    if (!made) made = std::make_shared<RandomPieces>(dtype_info(dtype), stddev, mean);
    return made;
  }
  std::map<std::tuple<DType, float, float>, std::shared_ptr<const RandomPieces>> made_;
};

std::vector<DType> choose_dtypes(const Shape& shape, const SynthOptions& options,
                                 std::span<const ShapeTensor> tensors) {
  std::vector<MixTensor> list;
  for (const ShapeTensor& tensor : tensors) list.push_back({tensor.name, tensor.dims, DType::F32});
  const MixModel model{shape.arch, shape.n_layer, shape.n_head, shape.n_head_kv, shape.n_expert};
  return quant_mix(options.type, model, list, options.mix);
}

Metadata make_metadata(const Shape& shape, const SynthOptions& options) {
  Metadata metadata;
  add_hyperparameters(shape, metadata);
  metadata.set("general.file_type", Value(static_cast<uint32_t>(options.type)));
  metadata.set("general.quantization_version", Value(uint32_t{2}));
  const bool is_cut = options.max_tokens > 0 && options.max_tokens < shape.n_vocab;
  add_random_vocab(is_cut ? VocabKind::spm_llama : shape.vocab, is_cut ? options.max_tokens : shape.n_vocab,
                   options.seed, metadata);
  return metadata;
}

// `file`: a GgufWriter or a GgufHeader.
template <class File>
void declare(File& file, const Shape& shape, const SynthOptions& options,
             std::span<const ShapeTensor> tensors, std::span<const DType> dtypes) {
  file.metadata() = make_metadata(shape, options);
  for (size_t i = 0; i < tensors.size(); ++i) {
    file.add_tensor(tensors[i].name, dtypes[i], std::span(tensors[i].dims).first(tensors[i].n_dims));
  }
}

// Multiplies the rows [first_float / k, ...) of a router [n_expert, k].
void scale_rows(std::span<std::byte> floats, size_t first_float, int64_t k, std::span<const float> factors) {
  for (size_t at = 0; at < floats.size(); at += sizeof(float)) {
    float value;
    memcpy(&value, &floats[at], sizeof value);
    value *= factors[(first_float + at / sizeof(float)) / static_cast<size_t>(k)];
    memcpy(&floats[at], &value, sizeof value);
  }
}

// Passes the bytes of one tensor to `sink`, in chunks.
template <class Sink>
void make_tensor(const Shape& shape, const SynthOptions& options, const ShapeTensor& tensor, DType dtype,
                 Pieces& pieces, Sink sink) {
  const uint64_t seed = tensor_seed(options.seed, tensor.name);
  if (tensor.role == TensorRole::rope_factors) {
    const std::vector<float> factors = rope_factors(shape);
    return sink(std::as_bytes(std::span(factors)));
  }
  std::vector<float> row_factors;
  if (tensor.role == TensorRole::router && options.expert_skew > 0) {
    TANDEM_CHECK(dtype == DType::F32);  // in every mix
    row_factors = skewed_row_factors(shape.n_expert, shape.n_expert_used, options.expert_skew, seed);
  }
  RandomWeights weights(pieces.of(tensor, dtype), seed);
  const size_t block_bytes = dtype_info(dtype).block_bytes;
  const size_t chunk_bytes = kChunkBytes / block_bytes * block_bytes;
  const size_t n_bytes = row_bytes(dtype, tensor.dims[0]) * static_cast<size_t>(tensor.n_rows());
  size_t left = n_bytes;
  std::vector<std::byte> chunk(std::min(left, chunk_bytes));
  while (left > 0) {
    const std::span<std::byte> part = std::span(chunk).first(std::min(left, chunk.size()));
    weights.fill(part);
    if (!row_factors.empty()) scale_rows(part, (n_bytes - left) / sizeof(float), tensor.dims[0], row_factors);
    sink(std::span<const std::byte>(part));
    left -= part.size();
  }
}

// A line on the terminal, redrawn a few times a second; nothing if stderr is a file.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  void update(SynthProgress p) {
    const Clock::time_point now = Clock::now();
    if (!terminal_ || now - drawn_ < std::chrono::milliseconds(100)) return;
    drawn_ = now;
    fprintf(stderr, "\r%3.0f%% of %.2f GiB, %.0f MiB/s ",
            100.0 * static_cast<double>(p.n_bytes_done) / static_cast<double>(p.n_bytes),
            static_cast<double>(p.n_bytes) / 0x1p30,
            static_cast<double>(p.n_bytes_done) / 0x1p20 / seconds());
    any_ = true;
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  ~ProgressLine() { clear(); }
  void clear() {
    if (any_) fprintf(stderr, "\r%*s\r", 40, "");
    any_ = false;
  }

 private:
  bool terminal_ = isatty(STDERR_FILENO) == 1;
  bool any_ = false;
  Clock::time_point start_ = Clock::now(), drawn_ = start_;
};

struct SynthCommand {
  std::string shape, out, type = "Q4_K_M";
  int32_t seed = 1, n_layers = 0;
  double expert_skew = 0;
  bool pure = false, list = false;
  LogOptions log;
};

std::string synth_type_names() {
  std::string names;
  for (const FileTypeInfo& info : all_file_types())
    names += (names.empty() ? "" : " ") + std::string(info.name);
  return names;
}

void print_lists() {
  Output out;
  out.write("Shapes:\n");
  for (const Shape& s : all_shapes()) {
    uint64_t n = 0;
    for (const ShapeTensor& tensor : tensors_of(s)) n += static_cast<uint64_t>(tensor.n_elements());
    out.write(format("  {:<18} {:6.2f} B weights, {:2} layers, {}\n", s.name, static_cast<double>(n) / 1e9,
                     s.n_layer, s.arch));
  }
  out.write("File types:\n");
  for (const FileTypeInfo& info : all_file_types()) {
    out.write(format("  {:<8} {}\n", info.name, info.about));
  }
  out.flush();
}

void run_synth(const SynthCommand& options) {
  apply_log_options(options.log);
  if (options.list) return print_lists();
  const Shape* known = find_shape(options.shape);
  if (!known) throw_unknown_name("SHAPE", options.shape, shape_names());
  const std::optional<FileType> type = file_type_from_name(options.type);
  if (!type) {
    throw_error(ErrorCode::usage, "--type: found \"{}\", needed one of: {}", printable(options.type),
                synth_type_names());
  }
  if (options.out.empty()) throw_error(ErrorCode::usage, "-o is required: the file to write");
  Shape shape = *known;
  if (options.n_layers > shape.n_layer) {
    throw_error(ErrorCode::usage, "--layers: found {}, needed at most the {} of {}", options.n_layers,
                shape.n_layer, options.shape);
  }
  if (options.n_layers > 0) shape.n_layer = options.n_layers;
  if (options.expert_skew > 0 && shape.n_expert == 0) {
    throw_error(ErrorCode::usage, "--expert-skew: {} has no experts", options.shape);
  }

  install_interrupt_handler();
  ProgressLine line;
  const SynthResult result = write_synthetic_model(shape,
                                                   {*type, options.pure ? Mix::pure : Mix::standard,
                                                    static_cast<uint64_t>(options.seed), options.expert_skew},
                                                   options.out, [&line](SynthProgress p) { line.update(p); });
  const double seconds = line.seconds();
  line.clear();
  const double n_bytes = static_cast<double>(result.n_bytes);
  log_info("wrote {}: {:.2f} GiB, {:.2f} B weights in {} tensors, {:.1f} s ({:.0f} MiB/s)", options.out,
           n_bytes / 0x1p30, static_cast<double>(result.n_parameters) / 1e9, result.n_tensors, seconds,
           n_bytes / 0x1p20 / seconds);
}

}  // namespace

GgufHeader synthetic_header(const Shape& shape, const SynthOptions& options) {
  const std::vector<ShapeTensor> tensors = tensors_of(shape);
  GgufHeader header{std::string(shape.name)};
  declare(header, shape, options, tensors, choose_dtypes(shape, options, tensors));
  return header;
}

SynthResult write_synthetic_model(const Shape& shape, const SynthOptions& options, const std::string& path,
                                  const std::function<void(SynthProgress)>& progress) {
  const std::vector<ShapeTensor> tensors = tensors_of(shape);
  const std::vector<DType> dtypes = choose_dtypes(shape, options, tensors);
  refuse_other_kinds(FileKind::model, std::span(&path, 1));
  GgufWriter writer(path);
  declare(writer, shape, options, tensors, dtypes);
  SynthResult result;
  result.n_tensors = tensors.size();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const ShapeTensor& t = tensors[i];
    result.n_parameters += static_cast<uint64_t>(t.n_elements());
    result.n_bytes += row_bytes(dtypes[i], t.dims[0]) * static_cast<uint64_t>(t.n_rows());
  }
  uint64_t n_done = 0;
  Pieces pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    writer.begin_tensor(tensors[i].name);
    make_tensor(shape, options, tensors[i], dtypes[i], pieces, [&](std::span<const std::byte> bytes) {
      if (interrupted()) throw_error(ErrorCode::interrupted, "interrupted: {} is not written", path);
      writer.append(bytes);
      n_done += bytes.size();
      if (progress) progress({n_done, result.n_bytes});
    });
  }
  writer.finish();
  return result;
}

void add_synth(CLI::App& app) {
  const auto options = std::make_shared<SynthCommand>();
  CLI::App& command =
      add_command(app, "synth", "write a model with the shape of a public one and random weights");
  text(command, "shape", options->shape, "", "the model whose shape to use, e.g. tinyllama-1.1b (see --list)")
      .group("Model");
  text(command, "-o,--output", options->out, "FILE", "the file to write").group("Model");
  text(command, "--type", options->type, "TYPE", "file type, e.g. Q4_K_M, Q8_0 or F16 (see --list)")
      .group("Model");
  integer(command, "--layers", options->n_layers, 0, "make only the first N layers, 0: all").group("Model");
  flag(command, "--pure", options->pure, "use the type's base dtype for every matrix").group("Model");
  optional_real(
      command, "--expert-skew", 0,
      "use the experts of a mixture unequally, by Zipf's law with this exponent, e.g. 0.7; 0: equally",
      [options](float skew) { options->expert_skew = skew; })
      .default_str("0")
      .group("Model");
  integer(command, "--seed", options->seed, 0, "seed of the weights and the vocabulary").group("Model");
  flag(command, "--list", options->list, "list the shapes and the file types").group("Help");
  add_log_options(command, options->log);
  set_callback(command, [options] { run_synth(*options); });
}

}  // namespace tandem::tools
