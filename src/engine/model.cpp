#include "engine/model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "gguf/file_type.h"
#include "text/vocab_gguf.h"

namespace tandem {
namespace {

// "1.1B", "260K"
std::string short_count(int64_t n) {
  const auto x = static_cast<double>(n);
  if (x >= 1e9) return format("{:.1f}B", x / 1e9);
  if (x >= 1e6) return format("{:.1f}M", x / 1e6);
  return format("{:.0f}K", x / 1e3);
}

}  // namespace

std::unique_ptr<Model> Model::load(const std::string& path) {
  return load(ModelOptions{.path = path, .open = {}, .overrides = {}, .rope = {}, .part = ModelPart::main});
}

std::unique_ptr<Model> Model::load(const ModelOptions& options) {
  const std::string& path = options.path;
  std::unique_ptr<Model> model(new Model(GgufFile(path, options.open)));
  model->is_locked_ = options.open.mlock;
  for (const MetadataOverride& o : options.overrides) model->file_.metadata().apply(o);
  model->vocab_ = load_vocab(model->file_);
  if (model->file_.tensors().empty()) {
    throw_error(ErrorCode::bad_file, "{}: the file holds a vocabulary and no weights; a model is needed",
                path);
  }
  model->architecture_ =
      load_architecture(ModelSource{model->file_, *model->weights_, options.rope, options.part});
  if (model->vocab_->size() > model->hparams().n_vocab) {
    throw_error(ErrorCode::bad_file,
                "{}: the vocabulary has {} tokens, but tensor token_embd.weight only {} rows", path,
                model->vocab_->size(), model->hparams().n_vocab);
  }
  if (options.part != ModelPart::main) return model;
  for (std::string_view name : model->weights_->unused()) {
    log_verbose("{}: tensor {} is not used", path, printable(name));
  }
  return model;
}

void Model::keep_layers(LayerRange layers) {
  auto stage = std::make_unique<Stage>(std::move(architecture_), weights_->weights(), layers);
  stage_ = stage.get();
  architecture_ = std::move(stage);
  for (const Weight& w : stage_->weights()) {
    if (w.in_file) read_ahead(std::span(w.data, w.n_bytes()));
  }
}

std::vector<DiskFile> Model::disk_files() const {
  std::vector<DiskFile> files;
  for (const MappedFile& part : file_.parts()) files.push_back({part.path(), part.bytes()});
  return files;
}

int64_t Model::n_params() const {
  int64_t n = 0;
  for (const TensorInfo& t : file_.tensors()) n += t.n_elements();
  return n;
}

size_t Model::n_weight_bytes() const {
  return file_.n_tensor_bytes();
}

// The name of the file's type, or the dtype of most of its bytes if the file does not say.
static std::string file_type_of(const GgufFile& file) {
  uint32_t number = UINT32_MAX;
  try {
    number = file.metadata().get_or<uint32_t>("general.file_type", number);
  } catch (const Error&) {  // it is only a name
  }
  const std::string_view name = file_type_name(number);
  // A tool may have kept the number of its input: the file must have such tensors.
  const bool plausible =
      std::any_of(file.tensors().begin(), file.tensors().end(),
                  [&name](const TensorInfo& t) { return name.rfind(dtype_name(t.dtype), 0) == 0; });
  if (plausible) return std::string(name);
  std::map<DType, uint64_t> bytes;
  for (const TensorInfo& t : file.tensors()) bytes[t.dtype] += t.n_bytes;
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  return std::string(dtype_name(most->first));
}

std::string Model::description() const {
  return hparams().architecture + " " + short_count(n_params()) + " " + file_type_of(file_);
}

size_t Model::bytes_read_per_token() const {
  const Graph graph = architecture_->build(ShapeClass{});
  size_t n = 0;
  std::vector<const Weight*> tables, multiplied;
  for (const Node& node : graph.nodes) {
    const bool embeds = std::holds_alternative<EmbedOp>(node.op);
    for (TensorId id : inputs_of(node.op)) {
      if (graph.tensor(id).weight) (embeds ? tables : multiplied).push_back(graph.tensor(id).weight);
    }
  }
  std::sort(multiplied.begin(), multiplied.end());
  multiplied.erase(std::unique(multiplied.begin(), multiplied.end()), multiplied.end());
  for (const Weight* w : multiplied) n += w->n_bytes();
  for (const Weight* w : tables) n += row_bytes(w->dtype, w->n_cols);
  return n;
}

}  // namespace tandem
