// The tensors of the model classes that convert supports, as rules: first those that many architectures share,
// then one list an architecture. Pure functions; any thread.
#pragma once

#include <initializer_list>
#include <vector>

#include "tools/convert/tensor_mapping.h"

namespace tandem::tools::tensors {

using TensorRules = std::vector<TensorRule>;

TensorRules join(std::initializer_list<TensorRules> parts);
TensorRules in(Layers layers, TensorRules rules);  // applies them to these layers only

// ---- Shared by many architectures.

TensorRules ends(Layout norm = Layout::plain);  // embedding, output norm, output; `norm`: plus_one for Gemma
TensorRules norms_before(Layout norm = Layout::plain);  // of attention and feed-forward
// `rotation`: rope_rows for architectures that rotate pairs, plain for those that rotate halves.
TensorRules attention(Layout rotation);
TensorRules head_norms(Size q, Size k, Layout norm = Layout::plain);
TensorRules gated_mlp();
TensorRules mixtral_experts();
TensorRules qwen_experts();
TensorRules shared_expert();   // with a gate
TensorRules shared_experts();  // without, several as one
TensorRules selection_bias(const char* source);
TensorRules gated_attention();  // attn_q has a gate after each head; with head norms, both stored minus one
TensorRules delta_net();        // without what projects to q, k, v, z, alpha and beta
TensorRules mtp();              // what joins an MTP layer to the model
TensorRules mtp_apart();        // the same under names of Qwen's models

// ---- One architecture each.

TensorRules gemma_norms();
TensorRules phi3_tensors();
TensorRules olmo2_norms();
TensorRules gpt_oss_tensors();
TensorRules glm4_moe_tensors();
TensorRules minimax_m2_tensors();
TensorRules seed_oss_norms();
TensorRules qwen3_vl_experts();
TensorRules ernie4_5_moe_tensors();
TensorRules hunyuan_moe_tensors();
TensorRules exaone_moe_tensors();
TensorRules bailing_moe2_tensors();
TensorRules deepseek_tensors();
TensorRules qwen3_next_tensors();
TensorRules granite_hybrid_tensors();  // with experts and without
TensorRules nemotron_h_tensors();      // likewise
TensorRules lfm2_tensors();            // dense layers and mixtures
TensorRules qwen35_tensors();          // without the feed-forward part
TensorRules gemma4_tensors();

}  // namespace tandem::tools::tensors
