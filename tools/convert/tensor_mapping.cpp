#include "tools/convert/tensor_mapping.h"

#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <span>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "tools/convert/out_type.h"
#include "tools/matrix_factor.h"

namespace tandem::tools {
namespace {

constexpr int64_t kMxfp4Block = 32, kNvfp4Block = 16;

std::string replaced(std::string text, std::string_view what, const std::string& with) {
  const size_t at = text.find(what);
  return at == std::string::npos ? text : text.replace(at, what.size(), with);
}

bool is_layered(const TensorRule& rule) {
  return rule.layers == Layers::mtp || std::string_view(rule.source).find("{}") != std::string_view::npos;
}
bool is_mxfp4(Layout l) {
  return l == Layout::mxfp4 || l == Layout::mxfp4_even || l == Layout::mxfp4_odd;
}

constexpr std::string_view kLayers = "model.layers.";

// Returns the layer of "model.layers.LAYER. ...".
int64_t layer_of(std::string_view name) {
  int64_t layer = 0;
  std::from_chars(name.data() + kLayers.size(), name.data() + name.size(), layer);
  return layer;
}

// What would make keys and values in a layer that reads those of another.
bool is_of_shared_cache(std::string_view name, const ModelConfig& config) {
  if (!config.shares_cache(layer_of(name))) return false;
  for (const char* part : {".self_attn.k_proj.", ".self_attn.v_proj.", ".self_attn.k_norm."}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

// Tensors of a checkpoint that a GGUF file does not have: computed tables, and what predicts tokens further ahead where it is
// left out.
bool is_ignored(std::string_view name, const ModelConfig& config) {
  if (config.drops_mtp && name.starts_with(kLayers) && layer_of(name) >= config.n_layer) return true;
  if (config.mixed.n_shared > 0 && name.starts_with(kLayers) && is_of_shared_cache(name, config)) return true;
  // Of quantized checkpoints: of activations and caches, which are quantized in another way here, if at all.
  for (const char* scale : {".input_scale", ".input_global_scale", ".activation_scale", ".q_scale", ".k_scale", ".v_scale"}) {
    if (name.ends_with(scale)) return true;
  }
  if (name.ends_with("rotary_emb.inv_freq") || name.ends_with(".masked_bias")) return true;
  const bool is_recurrent = config.delta_net.attention_interval > 0 || config.ssm.n_head > 0;
  if (name.starts_with("mtp.") && is_recurrent && config.n_mtp_layers == 0) return true;
  return name.starts_with("lm_head.weight") && config.tied;
}

// Tensors of vision and audio: only the text model is converted.
bool is_of_other_media(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  for (const std::string_view prefix : {"vision_tower.", "vision_model.", "visual.", "multi_modal_projector.",
                                        "audio_tower.", "embed_vision.", "embed_audio."}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

bool applies(const TensorRule& rule, int64_t layer, const ModelConfig& config) {
  const bool of_shared_expert = rule.rows == Size::ff_shared || rule.cols == Size::ff_shared;
  if (of_shared_expert && config.n_ff_shared == 0) return false;
  const bool of_q_rank = rule.rows == Size::q_rank || rule.cols == Size::q_rank;
  if (of_q_rank && config.latent.q_rank == 0) return false;
  const bool of_latent = std::string_view(rule.target).starts_with("ffn_latent_");
  if (of_latent && config.n_latent == 0) return false;
  if (rule.rows == Size::q_direct && config.latent.q_rank > 0) return false;
  switch (rule.layers) {
    case Layers::all: return true;
    case Layers::dense: return config.has_feed_forward(layer) && !config.has_experts(layer);
    case Layers::mixture: return config.has_feed_forward(layer) && config.has_experts(layer);
    case Layers::mtp: return layer >= config.n_layer;
    case Layers::attention: return config.kind(layer) == LayerKind::attention;
    case Layers::recurrent: return config.kind(layer) == LayerKind::recurrent;
    case Layers::with_input: return config.layer_inputs.width > 0;
    case Layers::own_cache: return !config.shares_cache(layer);
    case Layers::own_values:
      return !config.shares_cache(layer) && (config.slides(layer) || !config.mixed.values_are_keys);
  }
  TANDEM_CHECK(false);
}

class TensorMapper {
 public:
  TensorMapper(const Checkpoint& checkpoint, const ModelConfig& config)
      : checkpoint_(checkpoint), config_(config) {}

  void apply(const TensorRule& rule, int64_t layer) {
    layer_ = std::max<int64_t>(layer, 0);
    const std::string target = layer < 0 ? rule.target : "blk." + std::to_string(layer) + "." + rule.target;
    const std::string source = source_name(rule, layer);
    const bool tied_output = source == "lm_head.weight" && (config_.tied || !config_.has_tied_key);
    if (source == "lm_head.weight" && config_.tied) return;
    const bool found = checkpoint_.find_stored(first_name(rule, source)) != nullptr;
    if (!found || mapped_.contains(target)) {
      if (rule.required && !tied_output) needed_.emplace(target, source);
      return;
    }
    mapped_.insert(target);
    plans_.push_back(make_plan(rule, target, source));
    if (stays_nvfp4(plans_.back())) keep_nvfp4();
  }

  // Of Qwen's models, MTP layers have numbers of their own.
  std::string source_name(const TensorRule& rule, int64_t layer) const {
    const std::string name = replaced(rule.source, "{}", std::to_string(layer));
    if (!config_.mtp_apart || layer < config_.n_layer || !name.starts_with(kLayers)) return name;
    return format("mtp.layers.{}{}", layer - config_.n_layer, name.substr(name.find('.', kLayers.size())));
  }

  std::vector<TensorMapping> finish() {
    for (const auto& [target, source] : needed_) {
      if (mapped_.contains(target)) continue;
      throw_error(ErrorCode::bad_file, "{}: tensor {} is missing, needed for {}", folder_name(), source,
                  target);
    }
    size_t n_other_media = 0;
    for (const auto& [name, tensor] : checkpoint_.tensors()) {
      if (used_.contains(tensor) || is_ignored(name, config_)) continue;
      if (is_of_other_media(name)) {
        ++n_other_media;
        continue;
      }
      throw_error(ErrorCode::bad_file,
                  "{}: tensor {} {} is not known for the model class that config.json names",
                  tensor->file->path(), printable(tensor->name), tensor->shape_text());
    }
    if (n_other_media > 0) {
      log_info("{}: only the text model is converted, without {} tensors of vision and audio", folder_name(),
               n_other_media);
    }
    return std::move(plans_);
  }

 private:
  int64_t size(Size s) const {
    const ModelConfig& c = config_;
    const int64_t layer = std::min(layer_, c.n_layer - 1);  // MTP layers are like the last
    switch (s) {
      case Size::none:
      case Size::one: return 1;
      case Size::vocab: return c.n_vocab;
      case Size::embd: return c.n_embd;
      case Size::two_embd: return 2 * c.n_embd;
      case Size::q:
      case Size::q_direct: return c.n_head * c.head_dim_of(layer);
      case Size::kv: return c.n_head_kv_of(layer) * c.head_dim_of(layer);
      case Size::qkv: return (c.n_head + 2 * c.n_head_kv) * c.head_dim;
      case Size::ff: return c.n_ff_of(layer);
      case Size::two_ff: return 2 * c.n_ff;
      case Size::ff_expert: return c.n_ff_expert > 0 ? c.n_ff_expert : c.n_ff;
      case Size::ff_shared: return c.n_ff_shared;
      case Size::head_dim: return c.head_dim_of(layer);
      case Size::expert: return c.n_expert;
      case Size::head: return c.n_head;
      case Size::q_rank: return c.latent.q_rank;
      case Size::rank: return c.latent.rank;
      case Size::rank_and_rot: return c.latent.rank + c.latent.n_rot;
      case Size::key_up: return c.latent.key - c.latent.n_rot;
      case Size::value: return c.latent.value;
      case Size::values: return c.n_head * c.latent.value;
      case Size::two_q: return 2 * c.n_head * c.head_dim;
      case Size::three_embd: return 3 * c.n_embd;
      case Size::ff_latent: return c.n_latent > 0 ? c.n_latent : c.n_embd;
      case Size::ssm_in: return c.ssm.n_inner() + c.ssm.n_xbc() + c.ssm.n_head;
      case Size::ssm_xbc: return c.ssm.n_xbc();
      case Size::ssm_inner: return c.ssm.n_inner();
      case Size::ssm_head: return c.ssm.n_head;
      case Size::ssm_group: return c.ssm.n_group;
      case Size::ssm_group_width: return c.ssm.n_inner() / c.ssm.n_group;
      case Size::delta_qkv: return c.delta_net.n_qkv();
      case Size::delta_v: return c.delta_net.n_v();
      case Size::delta_ba: return 2 * c.delta_net.n_head_v;
      case Size::delta_head: return c.delta_net.n_head_v;
      case Size::delta_head_dim: return c.delta_net.head_dim_v;
      case Size::two_ff_expert: return 2 * c.n_ff_expert;
      case Size::layer_inputs: return c.n_layer * c.layer_inputs.width;
      case Size::layer_input: return c.layer_inputs.width;
      case Size::layer_input_vocab: return c.layer_inputs.n_vocab;
    }
    TANDEM_CHECK(false);
  }

  std::string folder_name() const { return checkpoint_.files().front()->path(); }

  // Of the last tensor.
  void keep_nvfp4() {
    TensorMapping& weights = plans_.back();
    weights.dtype = DType::NVFP4;
    TensorMapping scale;
    scale.name = factor_name(weights.name);
    scale.values = weights.factors;
    scale.dims = {static_cast<int64_t>(scale.values.size())};
    plans_.push_back(std::move(scale));
  }

  static std::string first_name(const TensorRule& rule, const std::string& source) {
    if (is_mxfp4(rule.layout)) return source + "_blocks";
    return replaced(source, "{e}", "0");
  }

  const SourceTensor* take(const std::string& name, const std::vector<int64_t>& shape) {
    const SourceTensor* tensor = checkpoint_.find(name);
    if (!tensor) throw_error(ErrorCode::bad_file, "{}: tensor {} is missing", folder_name(), name);
    return take(*tensor, shape);
  }
  const SourceTensor* take(const SourceTensor& tensor, const std::vector<int64_t>& shape) {
    if (tensor.shape != shape) {
      SourceTensor needed{tensor.name, tensor.dtype, shape, tensor.file, 0, 0};
      throw_error(ErrorCode::bad_file, "{}: tensor {}: found shape {}, needed {} by config.json", tensor.file->path(),
                  printable(tensor.name), tensor.shape_text(), needed.shape_text());
    }
    used_.insert(&tensor);
    return &tensor;
  }

  const SourceTensor* take_floats(const std::string& name, const std::vector<int64_t>& shape) {
    return checked_floats(take(name, shape));
  }
  const SourceTensor* take_floats(const SourceTensor& tensor, const std::vector<int64_t>& shape) {
    return checked_floats(take(tensor, shape));
  }
  static const SourceTensor* checked_floats(const SourceTensor* tensor) {
    if (tensor->dtype > SourceDType::BF16) refuse_dtype(*tensor, "F64, F32, F16 or BF16");
    return tensor;
  }

  // Adds a matrix or vector of floats, or a matrix in FP8 or NVFP4 with its scales.
  void add_source(TensorMapping& mapping, const std::string& name, const std::vector<int64_t>& shape) {
    const SourceTensor* tensor = checkpoint_.find_stored(name);
    if (tensor != nullptr && shape.size() == 2 && is_nvfp4(*tensor, name)) return add_nvfp4(mapping, *tensor, name, shape);
    if (tensor != nullptr && checkpoint_.find(name) == nullptr) refuse_dtype(*tensor, "U8, with scales in F8_E4M3");
    if (mapping.of_nvfp4()) refuse_dtype(*take(name, shape), "U8, as of the experts before");
    if (tensor == nullptr || tensor->dtype != SourceDType::F8_E4M3 || shape.size() != 2) {
      mapping.sources.push_back(take_floats(name, shape));
      if (!mapping.block_scales.empty()) mapping.block_scales.push_back(nullptr);
      return;
    }
    const SourceTensor* scales = take_fp8_scales(name, shape);
    mapping.sources.push_back(take(name, shape));
    const auto [block_rows, block_cols] = block_of(*scales, shape);
    add_scales(mapping, *scales, block_rows, block_cols);
  }

  const SourceTensor* take_fp8_scales(const std::string& name, const std::vector<int64_t>& shape) {
    const SourceTensor* found = checkpoint_.find(name + "_scale");
    if (found == nullptr) found = checkpoint_.find(name + "_scale_inv");
    const auto [rows, cols] = config_.fp8_block;
    const std::vector<int64_t> blocks{ceil_div(shape[0], rows), ceil_div(shape[1], cols)};
    if (found == nullptr) return take_floats(name + "_scale_inv", blocks);
    const auto are_of_rows = [&] { return found->n_elements() == shape[0] && found->shape[0] == shape[0]; };
    const bool is_spread = found->shape == std::vector<int64_t>{blocks[0], 1, blocks[1], 1};  // as ModelOpt stores blocks
    return take_floats(*found, found->n_elements() == 1 || is_spread || are_of_rows() ? found->shape : blocks);
  }

  // Rows and columns that share a scale.
  std::array<int64_t, 2> block_of(const SourceTensor& scales, const std::vector<int64_t>& shape) const {
    if (scales.n_elements() == 1) return {shape[0], shape[1]};
    const bool of_rows = scales.n_elements() == shape[0] && scales.shape[0] == shape[0];
    return of_rows ? std::array<int64_t, 2>{1, shape[1]} : config_.fp8_block;
  }

  // Of the last source. Those before it may have none.
  void add_scales(TensorMapping& mapping, const SourceTensor& scales, int64_t block_rows, int64_t block_cols) const {
    if (mapping.block_rows != 0 && (mapping.block_rows != block_rows || mapping.block_cols != block_cols)) {
      throw_error(ErrorCode::bad_file, "{}: tensor {}: found scales of {} x {} weights, needed {} x {}, as for the experts before",
                  scales.file->path(), printable(scales.name), block_rows, block_cols, mapping.block_rows, mapping.block_cols);
    }
    mapping.block_rows = block_rows;
    mapping.block_cols = block_cols;
    mapping.block_scales.resize(mapping.sources.size());
    mapping.block_scales.back() = &scales;
  }

  bool is_nvfp4(const SourceTensor& tensor, const std::string& name) const {
    const SourceTensor* scales = checkpoint_.find(name + "_scale");
    return tensor.dtype == SourceDType::U8 && scales && scales->dtype == SourceDType::F8_E4M3;
  }

  void add_nvfp4(TensorMapping& mapping, const SourceTensor& tensor, const std::string& name, const std::vector<int64_t>& shape) {
    if (mapping.sources.size() > mapping.factors.size()) refuse_dtype(tensor, "that of the experts before");
    if (shape[1] % kNvfp4Block != 0) {
      throw_error(ErrorCode::bad_file, "{}: tensor {}: found {} columns by config.json, needed a multiple of {}",
                  tensor.file->path(), printable(tensor.name), shape[1], kNvfp4Block);
    }
    mapping.sources.push_back(take(tensor, {shape[0], shape[1] / 2}));
    add_scales(mapping, *take(name + "_scale", {shape[0], shape[1] / kNvfp4Block}), 1, kNvfp4Block);
    const bool divides = checkpoint_.find(name + "_global_scale") != nullptr;
    const float factor = take_number(name + (divides ? "_global_scale" : "_scale_2"));
    mapping.factors.push_back(divides ? 1.0f / factor : factor);
  }

  // A factor, in a tensor of one number.
  float take_number(const std::string& name) {
    const SourceTensor* found = checkpoint_.find(name);
    const SourceTensor* tensor = take(name, found && found->n_elements() == 1 ? found->shape : std::vector<int64_t>{1});
    if (tensor->dtype != SourceDType::F32) refuse_dtype(*tensor, "F32");
    float x;
    tensor->file->read(tensor->offset, std::as_writable_bytes(std::span(&x, 1)));
    if (std::isnormal(x) && x > 0.0f && std::isnormal(1.0f / x)) return x;
    throw_error(ErrorCode::bad_file, "{}: tensor {}: found {}, needed a factor of a matrix", tensor->file->path(),
                printable(name), x);
  }

  [[noreturn]] static void refuse_dtype(const SourceTensor& tensor, const char* needed) {
    throw_error(ErrorCode::bad_file, "{}: tensor {}: found dtype {}, needed {}", tensor.file->path(),
                printable(tensor.name), source_dtype_name(tensor.dtype), needed);
  }

  TensorMapping make_plan(const TensorRule& rule, const std::string& target, const std::string& source) {
    const int64_t rows = size(rule.rows), cols = size(rule.cols), n = size(Size::expert);
    TensorMapping mapping;
    mapping.name = target;
    const bool is_vector = rule.cols == Size::none;
    mapping.dims = is_vector ? std::vector<int64_t>{rows} : std::vector<int64_t>{cols, rows};
    mapping.matrix_rows = is_vector ? 1 : rows;
    mapping.row_stride = is_vector ? 0 : cols;
    switch (rule.layout) {
      case Layout::plus_one:
      case Layout::minus_exp:
      case Layout::plain:
      case Layout::rope_rows:
        mapping.add = rule.layout == Layout::plus_one ? 1.0f : 0.0f;
        mapping.minus_exp = rule.layout == Layout::minus_exp;
        add_source(mapping, source, is_vector ? std::vector{rows} : std::vector{rows, cols});
        if (rule.layout == Layout::rope_rows) pair_rows(mapping, is_vector);
        return mapping;
      case Layout::tiled:
      case Layout::tiled_minus_exp:
        mapping.minus_exp = rule.layout == Layout::tiled_minus_exp;
        add_source(mapping, source, is_vector ? std::vector{rows} : std::vector{rows, cols});
        mapping.row_order = tiled_order(rows);
        if (is_vector) {  // as rows of one element
          mapping.matrix_rows = rows;
          mapping.row_stride = 1;
        }
        return mapping;
      case Layout::tiled_cols:
        add_source(mapping, source, {rows, cols});
        mapping.col_order = tiled_order(cols);
        return mapping;
      case Layout::tiled_conv: mapping.row_order = tiled_order(rows); [[fallthrough]];
      case Layout::conv: {
        const int64_t width = config_.n_conv;
        mapping.dims = {width, rows};
        mapping.matrix_rows = rows;
        mapping.row_stride = width;
        mapping.sources = {take_floats(source, {rows, 1, width})};
        return mapping;
      }
      case Layout::delta_qkvz_qkv:
      case Layout::delta_qkvz_z:
        add_source(mapping, source, {config_.delta_net.n_qkv() + config_.delta_net.n_v(), cols});
        mapping.row_order = qkvz_rows(rule.layout == Layout::delta_qkvz_z);
        return mapping;
      case Layout::folded:
      case Layout::folded_minus_exp:
        mapping.minus_exp = rule.layout == Layout::folded_minus_exp;
        mapping.sources = {take_floats(source, {rows * cols})};
        return mapping;
      case Layout::expert_rows: return rows_plan(std::move(mapping), source, 1, 0);
      case Layout::upper_rows: return rows_plan(std::move(mapping), source, 2, 0);
      case Layout::lower_rows: return rows_plan(std::move(mapping), source, 2, 1);
      case Layout::row_of_one: {
        const SourceTensor* found = checkpoint_.find(source);
        const bool flat = found && found->shape.size() == 1;
        mapping.sources = {take_floats(source, flat ? std::vector{rows} : std::vector{int64_t{1}, rows})};
        return mapping;
      }
      case Layout::stacked:
        mapping.dims.push_back(n);
        for (int64_t e = 0; e < n; ++e) {
          add_source(mapping, replaced(source, "{e}", std::to_string(e)), {rows, cols});
        }
        return mapping;
      case Layout::expert_bias: return bias_plan(std::move(mapping), source, rows, 1, 0);
      case Layout::even_bias: return bias_plan(std::move(mapping), source, rows, 2, 0);
      case Layout::odd_bias: return bias_plan(std::move(mapping), source, rows, 2, 1);
      case Layout::transposed: return transposed_plan(std::move(mapping), source, rows, cols, 1, 0);
      case Layout::transposed_even: return transposed_plan(std::move(mapping), source, rows, cols, 2, 0);
      case Layout::transposed_odd: return transposed_plan(std::move(mapping), source, rows, cols, 2, 1);
      case Layout::first_half: return half_plan(std::move(mapping), source, rows, cols, 2, 0);
      case Layout::second_half: return half_plan(std::move(mapping), source, rows, cols, 2, rows);
      case Layout::transposed_or_plain: return half_plan(std::move(mapping), source, rows, cols, 1, 0);
      case Layout::key_rows: return head_rows_plan(std::move(mapping), source, 0, true);
      case Layout::value_rows: return head_rows_plan(std::move(mapping), source, size(Size::key_up), false);
      case Layout::mxfp4: return mxfp4_mapping(std::move(mapping), source, rows, cols, 1, 0);
      case Layout::mxfp4_even: return mxfp4_mapping(std::move(mapping), source, rows, cols, 2, 0);
      case Layout::mxfp4_odd: return mxfp4_mapping(std::move(mapping), source, rows, cols, 2, 1);
    }
    TANDEM_CHECK(false);
  }

  std::vector<int64_t> tiled_order(int64_t n) const {
    const DeltaNetConfig& d = config_.delta_net;
    const int64_t size = n == d.n_head_v ? 1 : d.head_dim_v, first = n - d.n_head_v * size;
    std::vector<int64_t> order;
    for (int64_t i = 0; i < first; ++i) order.push_back(i);
    for (int64_t h = 0; h < d.n_head_v; ++h) {
      const int64_t source = h % d.n_head_k * (d.n_head_v / d.n_head_k) + h / d.n_head_k;
      for (int64_t i = 0; i < size; ++i) order.push_back(first + source * size + i);
    }
    return order;
  }

  // The rows are stored by key heads: q, k, then v and z of its value heads.
  std::vector<int64_t> qkvz_rows(bool z) const {
    const DeltaNetConfig& d = config_.delta_net;
    const int64_t n_v = d.n_v() / d.n_head_k;  // of a key head
    std::vector<int64_t> order;
    const auto add = [&](int64_t first, int64_t n) {
      for (int64_t head = 0; head < d.n_head_k; ++head) {
        for (int64_t i = 0; i < n; ++i) order.push_back(head * 2 * (d.head_dim_k + n_v) + first + i);
      }
    };
    if (z) {
      add(2 * d.head_dim_k + n_v, n_v);
      return order;
    }
    add(0, d.head_dim_k);
    add(d.head_dim_k, d.head_dim_k);
    add(2 * d.head_dim_k, n_v);
    return order;
  }

  // A bias is paired like the rows of its matrix: as rows of one element, which become one row again.
  void pair_rows(TensorMapping& mapping, bool is_vector) const {
    mapping.pair_head_dim = config_.head_dim;
    if (!is_vector) return;
    mapping.matrix_rows = mapping.dims[0];
    mapping.row_stride = 1;
  }

  TensorMapping bias_plan(TensorMapping mapping, const std::string& source, int64_t rows, int64_t stride,
                          int64_t first) {
    const int64_t n = size(Size::expert);
    mapping.dims = {rows, n};
    mapping.sources = {take_floats(source, {n, rows * stride})};
    mapping.matrix_rows = n;
    mapping.row_stride = rows * stride;
    mapping.col_stride = stride;
    mapping.first = first;
    return mapping;
  }

  TensorMapping transposed_plan(TensorMapping mapping, const std::string& source, int64_t rows, int64_t cols,
                                int64_t stride, int64_t first) {
    const int64_t n = size(Size::expert);
    mapping.dims.push_back(n);
    mapping.sources = {take_floats(source, {n, cols, rows * stride})};
    mapping.matrix_stride = cols * rows * stride;
    mapping.row_stride = stride;
    mapping.col_stride = rows * stride;
    mapping.first = first;
    return mapping;
  }

  // Rows [first, first + rows) of the `parts` x rows of each expert, stored as columns or as rows.
  TensorMapping half_plan(TensorMapping mapping, const std::string& source, int64_t rows, int64_t cols,
                          int64_t parts, int64_t first) {
    const int64_t n = size(Size::expert), n_rows = parts * rows;
    const std::vector<int64_t> as_columns{n, cols, n_rows}, as_rows{n, n_rows, cols};
    const SourceTensor* found = checkpoint_.find(source);
    const bool transposed = found == nullptr || found->shape != as_rows || cols == n_rows;
    mapping.dims.push_back(n);
    mapping.sources = {take_floats(source, transposed ? as_columns : as_rows)};
    mapping.matrix_stride = cols * n_rows;
    mapping.row_stride = transposed ? 1 : cols;
    mapping.col_stride = transposed ? n_rows : 1;
    mapping.first = transposed ? first : first * cols;
    return mapping;
  }

  // One of `parts` equal runs of rows of a matrix, or of each expert's.
  TensorMapping rows_plan(TensorMapping mapping, const std::string& source, int64_t parts, int64_t part) {
    const int64_t n = size(Size::expert), cols = mapping.dims[0], rows = mapping.dims[1];
    if (mapping.name.find("_exps.") != std::string::npos) {
      mapping.dims.push_back(n);
      mapping.sources = {take_floats(source, {n, parts * rows, cols})};
      mapping.matrix_stride = parts * rows * cols;
    } else {
      add_source(mapping, source, {parts * rows, cols});
    }
    mapping.first = part * rows * cols;
    return mapping;
  }

  // Some rows of each head of a matrix [head * (key_up + value), rank], from the head's row `first` on.
  TensorMapping head_rows_plan(TensorMapping mapping, const std::string& source, int64_t first,
                               bool transposed) {
    const int64_t n = size(Size::head), rank = size(Size::rank),
                  head_rows = size(Size::key_up) + size(Size::value);
    mapping.dims.push_back(n);
    add_source(mapping, source, {n * head_rows, rank});
    mapping.matrix_stride = head_rows * rank;
    mapping.row_stride = transposed ? 1 : rank;
    mapping.col_stride = transposed ? rank : 1;
    mapping.first = first * rank;
    return mapping;
  }

  // Counted in blocks: a row has cols / 32 of them.
  TensorMapping mxfp4_mapping(TensorMapping mapping, const std::string& source, int64_t rows, int64_t cols,
                              int64_t stride, int64_t first) {
    const int64_t n = size(Size::expert), blocks = cols / kMxfp4Block;
    mapping.dims.push_back(n);
    mapping.dtype = DType::MXFP4;
    mapping.sources = {take(source + "_blocks", {n, rows * stride, blocks, kMxfp4Block / 2})};
    mapping.scales = take(source + "_scales", {n, rows * stride, blocks});
    for (const SourceTensor* tensor : {mapping.sources[0], mapping.scales}) {
      if (tensor->dtype != SourceDType::U8) refuse_dtype(*tensor, "U8");
    }
    mapping.matrix_stride = rows * stride * blocks;
    mapping.row_stride = stride * blocks;
    mapping.first = first * blocks;
    return mapping;
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  int64_t layer_ = 0;  // of the rule that is applied
  std::vector<TensorMapping> plans_;
  std::set<std::string> mapped_;
  std::map<std::string, std::string> needed_;  // target -> source
  std::set<const SourceTensor*> used_;
};

}  // namespace

int64_t TensorMapping::n_rows() const {
  int64_t n = 1;
  for (size_t i = 1; i < dims.size(); ++i) n *= dims[i];
  return n;
}

// Halves to pairs: rows 2i and 2i + 1 of a head are its source rows i and i + head_dim / 2.
int64_t TensorMapping::source_row(int64_t row) const {
  if (!row_order.empty()) return row_order[static_cast<size_t>(row)];
  if (pair_head_dim == 0) return row;
  const int64_t within = row % pair_head_dim;
  return row - within + within / 2 + within % 2 * (pair_head_dim / 2);
}

std::vector<TensorMapping> map_tensors(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const std::vector<TensorRule>& rules) {
  TensorMapper mapper(checkpoint, config);
  for (const TensorRule& rule : rules) {
    if (!is_layered(rule) && applies(rule, -1, config)) mapper.apply(rule, -1);
  }
  for (int64_t layer = 0; layer < config.n_layer + config.n_mtp_layers; ++layer) {
    for (const TensorRule& rule : rules) {
      if (is_layered(rule) && applies(rule, layer, config)) mapper.apply(rule, layer);
    }
  }
  return mapper.finish();
}

}  // namespace tandem::tools
