#include "tools/quantize/mix.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/error.h"

namespace tandem::tools {
namespace {

constexpr FileTypeInfo kFileTypes[] = {
    {FileType::F32, "F32", DType::F32, "32-bit floats"},
    {FileType::F16, "F16", DType::F16, "16-bit floats"},
    {FileType::BF16, "BF16", DType::BF16, "bfloat16"},
    {FileType::Q8_0, "Q8_0", DType::Q8_0, "8.5 bits a weight"},
    {FileType::Q6_K, "Q6_K", DType::Q6_K, "6.6 bits"},
    {FileType::Q5_K_M, "Q5_K_M", DType::Q5_K, "5.5 bits, more for half of attn_v and ffn_down"},
    {FileType::Q5_K_S, "Q5_K_S", DType::Q5_K, "5.5 bits"},
    {FileType::Q5_1, "Q5_1", DType::Q5_1, "6 bits, old format with minimum"},
    {FileType::Q5_0, "Q5_0", DType::Q5_0, "5.5 bits, old format"},
    {FileType::Q4_K_M, "Q4_K_M", DType::Q4_K, "4.5 bits, more for half of attn_v and ffn_down"},
    {FileType::Q4_K_S, "Q4_K_S", DType::Q4_K, "4.5 bits, more for the first layers"},
    {FileType::IQ4_NL, "IQ4_NL", DType::IQ4_NL, "4.5 bits, uneven levels"},
    {FileType::IQ4_XS, "IQ4_XS", DType::IQ4_XS, "4.25 bits, uneven levels"},
    {FileType::MXFP4, "MXFP4", DType::MXFP4, "4.25 bits for experts, Q8_0 for all else"},
    {FileType::Q4_1, "Q4_1", DType::Q4_1, "5 bits, old format with minimum"},
    {FileType::Q4_0, "Q4_0", DType::Q4_0, "4.5 bits, old format"},
    {FileType::Q3_K_L, "Q3_K_L", DType::Q3_K, "3.4 bits, 5.5 for attn_v, attn_output and ffn_down"},
    {FileType::Q3_K_M, "Q3_K_M", DType::Q3_K, "3.4 bits, 4.5 for attn_v, attn_output and ffn_down"},
    {FileType::Q3_K_S, "Q3_K_S", DType::Q3_K, "3.4 bits"},
    {FileType::Q2_K, "Q2_K", DType::Q2_K, "2.6 bits, 3.4 for attn_v, attn_output and ffn_down"},
    {FileType::Q2_K_S, "Q2_K_S", DType::Q2_K, "2.6 bits, 4.5 for the first layers' ffn_down"},
    {FileType::IQ3_M, "IQ3_M", DType::IQ3_S, "3.44 bits, grid; 4.5 for attn_v and attn_output"},
    {FileType::IQ3_S, "IQ3_S", DType::IQ3_S, "3.44 bits, grid"},
    {FileType::IQ3_XS, "IQ3_XS", DType::IQ3_S, "3.3 bits, grid"},
    {FileType::IQ3_XXS, "IQ3_XXS", DType::IQ3_XXS, "3.06 bits, grid"},
    {FileType::IQ2_M, "IQ2_M", DType::IQ2_S, "2.7 bits, grid"},
    {FileType::IQ2_S, "IQ2_S", DType::IQ2_XS, "2.5 bits, grid"},
    {FileType::IQ2_XS, "IQ2_XS", DType::IQ2_XS, "2.31 bits, grid"},
    {FileType::IQ2_XXS, "IQ2_XXS", DType::IQ2_XXS, "2.06 bits, grid"},
    {FileType::IQ1_M, "IQ1_M", DType::IQ1_M, "1.75 bits, grid"},
    {FileType::IQ1_S, "IQ1_S", DType::IQ1_S, "1.56 bits, grid"},
    {FileType::NVFP4, "NVFP4", DType::NVFP4, "4.5 bits, a scale for 16 weights"},
    {FileType::TQ2_0, "TQ2_0", DType::TQ2_0, "2.06 bits, three levels: for models trained with them"},
    {FileType::TQ1_0, "TQ1_0", DType::TQ1_0, "1.69 bits, the same three levels"},
    {FileType::Q1_0, "Q1_0", DType::Q1_0, "1.13 bits, two levels: for models trained with them"},
};

enum class Category { output, token_embd, attn_q, attn_k, attn_v, attn_output, ffn_down, other };

// A fused matrix that contains v counts as attn_v.
Category category_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (name == "output.weight") return Category::output;
  if (name == "token_embd.weight" || name == "per_layer_token_embd.weight") return Category::token_embd;
  if (has("attn_qkv.weight") || has("attn_kv_b.weight") || has("attn_v.weight")) return Category::attn_v;
  if (has("attn_k.weight")) return Category::attn_k;
  if (has("attn_q.weight")) return Category::attn_q;
  if (has("attn_output.weight")) return Category::attn_output;
  if (has("ffn_up") || has("ffn_gate")) return Category::other;
  if (has("ffn_down")) return Category::ffn_down;
  return Category::other;
}

// Returns N of "blk.N."; -1 for other names.
int layer_of(std::string_view name) {
  int layer = -1;
  if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  return layer;
}

// The _M mixes give more bits to the first and last eighth of the layers and every third one between.
bool use_more_bits(int i, int n) {
  return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
}

struct Position {
  int index, count;  // this is tensor `index` of `count` of its category
};

template <class... Types>
bool is_any(FileType type, Types... of) {
  return ((type == of) || ...);
}

// The types of 2 bits and less have rules of their own.
bool is_iq2(FileType type) {
  return is_any(type, FileType::IQ2_XXS, FileType::IQ2_XS, FileType::IQ2_S, FileType::IQ2_M);
}
bool is_iq1(FileType type) {
  return is_any(type, FileType::IQ1_S, FileType::IQ1_M);
}
bool is_large_iq2(FileType type) {
  return is_any(type, FileType::IQ2_S, FileType::IQ2_M);
}

DType output_dtype(FileType type, DType base, int64_t row) {
  if (type == FileType::MXFP4 || row % dtype_info(base).block_elements != 0) return DType::Q8_0;
  if (is_iq2(type) || is_iq1(type) || type == FileType::IQ3_XXS) return DType::Q5_K;
  return base == DType::Q8_0 ? DType::Q8_0 : DType::Q6_K;
}

DType token_embd_dtype(FileType type, DType base) {
  if (is_large_iq2(type) || type == FileType::IQ3_XXS) return DType::IQ3_S;
  if (is_iq2(type) || is_iq1(type)) return DType::Q2_K;
  return is_any(type, FileType::TQ1_0, FileType::TQ2_0) ? DType::Q4_K : base;
}

DType iq2_dtype(FileType type, DType base, const MixModel& model, Category category, Position at) {
  const DType more = is_large_iq2(type) ? DType::IQ3_S : DType::Q2_K;
  switch (category) {
    case Category::attn_v:
      return model.n_head >= 4 * model.n_head_kv || model.n_expert >= 4 ? DType::Q4_K : more;
    case Category::attn_k: return model.n_expert == 8 ? DType::Q4_K : base;
    case Category::ffn_down: return at.index < at.count / 8 ? more : base;
    case Category::attn_output:
      if (model.n_expert == 8) return DType::Q5_K;
      return is_iq1(type) ? DType::IQ2_XXS : is_large_iq2(type) ? DType::IQ3_S : base;
    default: return base;
  }
}

// attn_q, attn_k, ffn_gate and ffn_up of the IQ3 types.
DType iq3_dtype(FileType type, DType base, Category category, Position at) {
  const bool outer = at.index < at.count / 8 || at.index >= 7 * at.count / 8;
  if (category == Category::other) return type == FileType::IQ3_XS && !outer ? DType::IQ3_XXS : base;
  return type == FileType::IQ3_XS ? DType::IQ3_XXS : type == FileType::IQ3_XXS ? DType::IQ2_S : base;
}

DType attn_v_dtype(FileType type, DType base, const MixModel& model, Position at) {
  const bool gqa4 = model.n_head >= 4 * model.n_head_kv;
  DType dtype = base;
  switch (type) {
    case FileType::Q2_K: dtype = gqa4 ? DType::Q4_K : DType::Q3_K; break;
    case FileType::Q2_K_S:
    case FileType::IQ3_XS:
    case FileType::IQ3_S: dtype = gqa4 ? DType::Q4_K : base; break;
    case FileType::IQ3_XXS: dtype = gqa4 ? DType::Q4_K : model.has_imatrix ? base : DType::IQ3_S; break;
    case FileType::IQ3_M: dtype = DType::Q4_K; break;
    case FileType::Q3_K_M: dtype = at.index < 2 ? DType::Q5_K : DType::Q4_K; break;
    case FileType::Q3_K_L: dtype = DType::Q5_K; break;
    case FileType::IQ4_NL:
    case FileType::IQ4_XS: dtype = gqa4 ? DType::Q5_K : base; break;
    case FileType::Q4_K_S: dtype = at.index < 4 ? DType::Q5_K : base; break;
    case FileType::Q4_K_M:
    case FileType::Q5_K_M: dtype = use_more_bits(at.index, at.count) ? DType::Q6_K : base; break;
    default: break;
  }
  // 80 layers: the 70B models, whose attn_v has an eighth of attn_q's size, so more bits cost next to
  // nothing.
  const bool is_70b = model.n_layer == 80 &&
                      ((model.arch == "llama" && model.n_head != model.n_head_kv) || model.arch == "qwen2");
  if (is_70b && (dtype == DType::Q3_K || dtype == DType::Q4_K)) dtype = DType::Q5_K;
  return model.n_expert == 8 ? DType::Q8_0 : dtype;
}

DType ffn_down_dtype(FileType type, DType base, const MixModel& model, Position at) {
  const bool falcon = model.arch == "falcon";
  const bool first_eighth = at.index < at.count / 8, first_sixteenth = at.index < at.count / 16;
  const bool more = use_more_bits(at.index, at.count);
  switch (type) {
    case FileType::Q2_K: return DType::Q3_K;
    case FileType::Q2_K_S: return first_eighth ? DType::Q4_K : base;
    case FileType::IQ3_XXS: return model.has_imatrix ? base : first_eighth ? DType::Q4_K : DType::Q3_K;
    case FileType::Q3_K_M:
      if (first_sixteenth) return DType::Q5_K;
      return !falcon || more ? DType::Q4_K : DType::Q3_K;
    case FileType::Q3_K_L: return falcon ? DType::Q4_K : DType::Q5_K;
    case FileType::Q4_K_M:
      if (!falcon) return more ? DType::Q6_K : base;
      if (first_sixteenth) return DType::Q6_K;
      return more ? DType::Q5_K : DType::Q4_K;
    case FileType::IQ4_NL:
    case FileType::IQ4_XS: return first_eighth && !model.has_imatrix ? DType::Q5_K : base;
    case FileType::Q5_K_M: return more ? DType::Q6_K : base;
    case FileType::Q4_K_S: return first_eighth && !falcon ? DType::Q5_K : base;
    case FileType::Q4_0:  // without a minimum, the search can fail on these
      return first_eighth && model.has_imatrix ? DType::Q4_1 : base;
    case FileType::Q5_0: return first_eighth && model.has_imatrix ? DType::Q5_1 : base;
    default: return base;
  }
}

DType attn_output_dtype(FileType type, DType base, const MixModel& model) {
  if (model.arch == "falcon") return type == FileType::Q3_K_L ? DType::Q4_K : base;
  if (model.n_expert == 8) {
    return is_any(type, FileType::Q2_K, FileType::Q3_K_S, FileType::Q3_K_M, FileType::IQ4_NL,
                  FileType::Q4_K_S, FileType::Q4_K_M, FileType::IQ4_XS, FileType::IQ3_XXS, FileType::IQ3_XS,
                  FileType::IQ3_S, FileType::IQ3_M)
               ? DType::Q5_K
               : base;
  }
  switch (type) {
    case FileType::Q2_K: return DType::Q3_K;
    case FileType::IQ3_XXS: return DType::IQ3_S;
    case FileType::IQ3_M:
    case FileType::Q3_K_M: return DType::Q4_K;
    case FileType::Q3_K_L: return DType::Q5_K;
    default: return base;
  }
}

}  // namespace

bool is_quantized(DType dtype) {
  return dtype_info(dtype).block_elements > 1;
}

std::span<const FileTypeInfo> all_file_types() {
  return kFileTypes;
}

const FileTypeInfo& file_type_info(FileType type) {
  const auto* info = std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                                  [&](const FileTypeInfo& candidate) { return candidate.type == type; });
  TANDEM_CHECK(info != std::end(kFileTypes));
  return *info;
}

bool wants_importance(FileType type) {
  return is_iq1(type) || is_iq2(type) || type == FileType::Q2_K_S;
}

std::optional<FileType> file_type_from_name(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(toupper(static_cast<unsigned char>(c)));
  if (upper == "Q3_K" || upper == "Q4_K" || upper == "Q5_K") upper += "_M";
  if (upper == "MXFP4_MOE") upper = "MXFP4";
  for (const FileTypeInfo& info : kFileTypes) {
    if (info.name == upper) return info.type;
  }
  return std::nullopt;
}

bool may_quantize(const MixTensor& tensor) {
  // clang-format off
  constexpr std::string_view kKept[] = {
      "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "ssm_conv1d", "shortconv.conv.weight",
      "altup", "laurel", "per_layer_model_proj", "attn_rel_b.weight", "indexer.k_proj.weight",
      "indexer.q_proj.weight", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
      "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight",
      "time_mix_a0.weight", "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight",
      "time_mix_g2.weight", "time_mix_decay_w1.weight", "time_mix_decay_w2.weight",
      "time_mix_lerp_fused.weight", ".position_embd", ".rel_pos", ".patch_embd", ".patch_merger"};
  // clang-format on
  if (tensor.dims[1] * tensor.dims[2] * tensor.dims[3] <= 1) return false;
  if (!tensor.name.ends_with("weight")) return false;
  if (tensor.name == "position_embd.weight" || tensor.name == "token_types.weight") return false;
  return std::none_of(std::begin(kKept), std::end(kKept), [&](std::string_view part) {
    return tensor.name.find(part) != std::string_view::npos;
  });
}

DType fit_row(DType dtype, int64_t row) {
  const auto fits = [&](DType d) { return row % dtype_info(d).block_elements == 0; };
  if (fits(dtype)) return dtype;
  switch (dtype) {
    case DType::Q2_K:
    case DType::Q3_K:
    case DType::TQ1_0:
    case DType::TQ2_0:
    case DType::Q1_0:
    case DType::NVFP4: dtype = DType::Q4_0; break;
    case DType::IQ1_S:
    case DType::IQ1_M:
    case DType::IQ2_XXS:
    case DType::IQ2_XS:
    case DType::IQ2_S:
    case DType::IQ3_XXS:
    case DType::IQ3_S:
    case DType::IQ4_XS: dtype = DType::IQ4_NL; break;
    case DType::Q4_K: dtype = DType::Q5_0; break;
    case DType::Q5_K: dtype = DType::Q5_1; break;
    case DType::Q6_K: dtype = DType::Q8_0; break;
    default: break;
  }
  return fits(dtype) ? dtype : DType::F16;
}

std::vector<DType> quant_mix(FileType type, const MixModel& model, std::span<const MixTensor> tensors,
                             Mix mix) {
  const DType base = file_type_info(type).base;
  const bool tied = std::none_of(tensors.begin(), tensors.end(),
                                 [](const MixTensor& t) { return category_of(t.name) == Category::output; });
  // A tensor's index counts tensors of its category in earlier layers that the mix decides: some layers have
  // none, and the user may have set some. Experts count by layer.
  std::vector<int> attn_v_layers, ffn_down_layers;
  int n_attn_v = 0;
  for (const MixTensor& tensor : tensors) {
    const Category category = category_of(tensor.name);
    n_attn_v += category == Category::attn_v;
    if (tensor.forced || !may_quantize(tensor)) continue;
    if (category == Category::attn_v) attn_v_layers.push_back(layer_of(tensor.name));
    if (category == Category::ffn_down) ffn_down_layers.push_back(layer_of(tensor.name));
  }
  std::sort(attn_v_layers.begin(), attn_v_layers.end());
  std::sort(ffn_down_layers.begin(), ffn_down_layers.end());
  const auto n_before = [](const std::vector<int>& layers, int layer) {
    return static_cast<int>(std::lower_bound(layers.begin(), layers.end(), layer) - layers.begin());
  };

  const auto choose = [&](const MixTensor& tensor) {
    if (!may_quantize(tensor)) return tensor.dtype;
    if (tensor.forced) return fit_row(*tensor.forced, tensor.dims[0]);
    if (!is_quantized(base)) return base;
    if (mix == Mix::pure) return fit_row(base, tensor.dims[0]);
    const Category category = category_of(tensor.name);
    const int layer = layer_of(tensor.name);
    const Position position{model.n_expert > 1 ? layer : n_before(ffn_down_layers, layer), model.n_layer};
    DType dtype = base;
    if (category == Category::output || (tied && category == Category::token_embd)) {
      dtype = model.output_dtype.value_or(output_dtype(type, base, tensor.dims[0]));
    } else if (type == FileType::MXFP4) {
      dtype = tensor.dims[2] > 1 ? DType::MXFP4 : DType::Q8_0;
    } else if (category == Category::token_embd) {
      dtype = token_embd_dtype(type, base);
    } else if (is_iq2(type) || is_iq1(type)) {
      dtype = iq2_dtype(type, base, model, category, position);
    } else if (category == Category::attn_v) {
      dtype = attn_v_dtype(type, base, model, {n_before(attn_v_layers, layer), n_attn_v});
    } else if (category == Category::attn_k && model.n_expert == 8) {
      dtype = DType::Q8_0;
    } else if (category == Category::ffn_down) {
      dtype = ffn_down_dtype(type, base, model, position);
    } else if (category == Category::attn_output) {
      dtype = attn_output_dtype(type, base, model);
    } else {
      dtype = iq3_dtype(type, base, category, {layer, model.n_layer});
    }
    return fit_row(dtype, tensor.dims[0]);
  };

  std::vector<DType> dtypes;
  dtypes.reserve(tensors.size());
  for (const MixTensor& tensor : tensors) dtypes.push_back(choose(tensor));
  return dtypes;
}

}  // namespace tandem::tools
