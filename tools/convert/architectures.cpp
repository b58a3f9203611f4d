#include "tools/convert/architectures.h"

#include "base/error.h"
#include "base/text.h"
#include "tools/convert/family_hparams.h"
#include "tools/convert/tensor_rules.h"

namespace tandem::tools {
namespace {

using namespace hparams;
using namespace tensors;
using L = Layout;
using S = Size;

std::vector<ConvertArchitecture> make_table() {
  const ConfigDefaults plain, gemma{.tied = true};
  const ConfigDefaults gemma3_defaults{.n_head = 8,
                                       .n_head_kv = 4,
                                       .head_dim = 256,
                                       .n_ctx = 131072,
                                       .n_vocab = 262208,
                                       .norm_eps = 1e-6,
                                       .rope_theta = 1e6,
                                       .tied = true};
  const ConfigDefaults gemma4_defaults{.n_head = 8,
                                       .n_head_kv = 4,
                                       .head_dim = 256,
                                       .n_ctx = 131072,
                                       .n_vocab = 262144,
                                       .norm_eps = 1e-6,
                                       .rope_theta = 1e6,
                                       .tied = true,
                                       .head_dim_full = 512};
  const ConfigDefaults qwen_mtp{.rotated_share = 0.25, .without_mtp = true, .mtp_apart = true};
  const TensorRules llama_layers = join({ends(), norms_before(), attention(L::rope_rows)});
  const TensorRules qwen_layers = join({ends(), norms_before(), attention(L::plain)});
  const TensorRules qk_norms = head_norms(S::head_dim, S::head_dim);
  const TensorRules olmo_layers =
      join({ends(), attention(L::plain), head_norms(S::q, S::kv), olmo2_norms(), gated_mlp()});
  const TensorRules gemma_layers = join({ends(L::plus_one), gemma_norms(), attention(L::plain), gated_mlp()});
  return {
      {"LlamaForCausalLM MistralForCausalLM MinistralForCausalLM", "llama", plain,
       join({llama_layers, gated_mlp()}), llama},
      {"MixtralForCausalLM", "llama", plain, join({llama_layers, mixtral_experts()}), llama},
      {"Mistral3ForConditionalGeneration Mistral3ForCausalLM Ministral3ForCausalLM", "mistral3", plain,
       join({llama_layers, gated_mlp()}), mistral3},
      {"GraniteForCausalLM", "granite", plain, join({llama_layers, gated_mlp()}), granite},
      {"SmolLM3ForCausalLM", "smollm3", plain, join({llama_layers, gated_mlp()}), smollm3},
      {"Qwen2ForCausalLM", "qwen2", plain, join({qwen_layers, gated_mlp()}), qwen},
      {"Qwen2MoeForCausalLM", "qwen2moe", plain, join({qwen_layers, qwen_experts(), shared_expert()}),
       qwen2_moe},
      {"Qwen3ForCausalLM", "qwen3", plain, join({qwen_layers, qk_norms, gated_mlp()}), qwen},
      {"Qwen3MoeForCausalLM", "qwen3moe", plain, join({qwen_layers, qk_norms, qwen_experts()}), qwen3_moe},
      {"Gemma2ForCausalLM", "gemma2", gemma, gemma_layers, gemma2},
      {"Gemma3ForCausalLM Gemma3ForConditionalGeneration", "gemma3", gemma3_defaults,
       join({gemma_layers, head_norms(S::head_dim, S::head_dim, L::plus_one)}), gemma3},
      {"Phi3ForCausalLM", "phi3", plain, join({ends(), norms_before(), phi3_tensors()}), phi3},
      {"Olmo2ForCausalLM", "olmo2", plain, olmo_layers, olmo2},
      {"Olmo3ForCausalLM", "olmo2", plain, olmo_layers, olmo3},
      {"Glm4MoeForCausalLM",
       "glm4moe",
       {.rotated_share = 0.5},
       join({ends(), attention(L::plain), glm4_moe_tensors()}),
       glm4_moe},
      {"MiniMaxM2ForCausalLM", "minimax-m2", plain, join({qwen_layers, minimax_m2_tensors()}), minimax_m2},
      {"Qwen3VLForConditionalGeneration", "qwen3vl", plain, join({qwen_layers, qk_norms, gated_mlp()}),
       qwen3_vl},
      {"Qwen3VLMoeForConditionalGeneration", "qwen3vlmoe", plain,
       join({qwen_layers, qk_norms, qwen3_vl_experts()}), qwen3_vl_moe},
      {"SeedOssForCausalLM", "seed_oss", plain,
       join({ends(), attention(L::plain), seed_oss_norms(), gated_mlp()}), seed_oss},
      {"Ernie4_5_MoeForCausalLM",
       "ernie4_5-moe",
       {.rope_theta = 5e5, .tied = true},
       join({qwen_layers, ernie4_5_moe_tensors()}),
       ernie4_5_moe},
      {"HunYuanMoEV1ForCausalLM", "hunyuan-moe", plain, join({qwen_layers, hunyuan_moe_tensors()}),
       hunyuan_moe},
      {"ExaoneMoEForCausalLM ExaoneMoeForCausalLM", "exaone-moe", plain,
       join({qwen_layers, exaone_moe_tensors()}), exaone_moe},
      {"BailingMoeV2ForCausalLM", "bailingmoe2", plain, bailing_moe2_tensors(), bailing_moe2},
      {"DeepseekV2ForCausalLM", "deepseek2", {.without_mtp = true}, deepseek_tensors(), deepseek_v2},
      {"DeepseekV3ForCausalLM Glm4MoeLiteForCausalLM",
       "deepseek2",
       {.without_mtp = true},
       deepseek_tensors(),
       deepseek_v3},
      {"Qwen3NextForCausalLM", "qwen3next", qwen_mtp, qwen3_next_tensors(), qwen3_next},
      {"Qwen3_5ForConditionalGeneration Qwen3_5ForCausalLM", "qwen35", qwen_mtp,
       join({qwen35_tensors(), gated_mlp()}), qwen35},
      {"Qwen3_5MoeForConditionalGeneration Qwen3_5MoeForCausalLM", "qwen35moe", qwen_mtp,
       join({qwen35_tensors(), qwen_experts(), qwen3_vl_experts(), shared_expert()}), qwen35_moe},
      {"Lfm2ForCausalLM LFM2ForCausalLM", "lfm2", {.rope_theta = 1e6, .tied = true}, lfm2_tensors(), lfm2},
      {"Lfm2MoeForCausalLM", "lfm2moe", {.rope_theta = 1e6, .tied = true}, lfm2_tensors(), lfm2_moe},
      {"GraniteMoeHybridForCausalLM", "granitehybrid", plain, granite_hybrid_tensors(), granite_hybrid,
       has_recurrent_layers},
      {"GraniteMoeHybridForCausalLM", "granite", plain, granite_hybrid_tensors(), granite_without_mamba,
       is_granite_without_mamba},
      {"NemotronHForCausalLM", "nemotron_h_moe", plain, nemotron_h_tensors(), nemotron_h_moe, names_mixture},
      {"NemotronHForCausalLM", "nemotron_h", plain, nemotron_h_tensors(), nemotron_h, is_nemotron_dense},
      {"Gemma4ForConditionalGeneration Gemma4ForCausalLM Gemma4UnifiedForConditionalGeneration", "gemma4",
       gemma4_defaults, gemma4_tensors(), add_gemma4},
      {"GptOssForCausalLM", "gpt-oss", plain, join({ends(), attention(L::plain), gpt_oss_tensors()}),
       gpt_oss},
  };
}

}  // namespace

void HparamWriter::tensor(const std::string& name, std::vector<float> values) {
  TensorMapping mapping;
  mapping.name = name;
  mapping.dims = {static_cast<int64_t>(values.size())};
  mapping.values = std::move(values);
  extra_.push_back(std::move(mapping));
}

std::span<const ConvertArchitecture> convert_architectures() {
  static const std::vector<ConvertArchitecture> table = make_table();
  return table;
}

const ConvertArchitecture& find_architecture(const JsonObject& config) {
  const std::string name = model_class(config);
  std::string known;
  for (const ConvertArchitecture& entry : convert_architectures()) {
    if (lists_name(entry.classes, name) && (!entry.fits || entry.fits(config))) return entry;
    if (!known.ends_with(entry.classes)) known += (known.empty() ? "" : " ") + std::string(entry.classes);
  }
  config.fail("architectures", "\"" + name + "\"", "one of the supported: " + known);
}

void add_hparams(const ConvertArchitecture& architecture, const ModelConfig& c, Metadata& metadata,
                 std::vector<TensorMapping>& extra) {
  HparamWriter out(architecture.name, metadata, extra);
  out.integer("vocab_size", c.n_vocab);
  out.integer("context_length", c.n_ctx);
  out.integer("embedding_length", c.n_embd);
  out.integer("block_count", c.n_layer + c.n_mtp_layers);
  if (c.n_mtp_layers > 0) out.integer("nextn_predict_layers", c.n_mtp_layers);
  out.integer("feed_forward_length", c.n_ff);
  out.integer("attention.head_count", c.n_head);
  out.integer("attention.head_count_kv", c.n_head_kv);
  out.number("attention.layer_norm_rms_epsilon", c.norm_eps);
  if (c.n_expert > 0) {
    out.integer("expert_count", c.n_expert);
    out.integer("expert_used_count", c.n_expert_used);
  }
  architecture.add_hparams(c, out);
}

}  // namespace tandem::tools
