"""The tiny models of reference_logits.py: one configuration for each variant of an architecture, written like the
config.json of a published model (older ones have rope_theta and rope_scaling, newer ones rope_parameters; both occur
here)."""

COMMON = dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
              num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=False,
              bos_token_id=1, eos_token_id=2, pad_token_id=0, hidden_act="silu")


def family(architecture, model_type, **changes):
    return {"architectures": [architecture], "model_type": model_type, **COMMON, **changes}


LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=32.0, beta_slow=1.0)
GEMMA = dict(head_dim=32, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6,
             sliding_window=12, query_pre_attn_scalar=24)
LONG_ROPE = dict(type="longrope", short_factor=[1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.0],
                 long_factor=[1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0])
GPT_OSS = family("GptOssForCausalLM", "gpt_oss", num_hidden_layers=3, head_dim=32, sliding_window=12,
                 num_local_experts=4, num_experts_per_tok=2, experts_per_token=2, swiglu_limit=7.0,
                 attention_bias=True, rope_theta=150000.0, intermediate_size=64,
                 layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                 rope_scaling=dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=64,
                                   beta_fast=32.0, beta_slow=1.0, truncate=False))

GLM_MIXTURE = dict(partial_rotary_factor=0.5, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
                   n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, norm_topk_prob=True)

# Sizes that differ from each other; values are narrower than keys, and no size but the rank is a multiple of 32.
LATENT = dict(num_key_value_heads=4, num_hidden_layers=3, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16,
              v_head_dim=20, moe_intermediate_size=32, rms_norm_eps=1e-6, attention_bias=False, rope_theta=10000.0)
DEEPSEEK_V3 = family("DeepseekV3ForCausalLM", "deepseek_v3", q_lora_rank=48, n_routed_experts=8,
                     num_experts_per_tok=6, n_shared_experts=1, first_k_dense_replace=1, n_group=4, topk_group=3,
                     norm_topk_prob=True, routed_scaling_factor=0.75, scoring_func="sigmoid", topk_method="noaux_tc",
                     rope_scaling=dict(type="yarn", factor=4, original_max_position_embeddings=64, beta_fast=32,
                                       beta_slow=1, mscale=1.0, mscale_all_dim=1.0), **LATENT)


MINIMAX_M2 = family("MiniMaxM2ForCausalLM", "minimax_m2", rope_theta=5000000.0, head_dim=32, rotary_dim=16,
                    num_local_experts=8, num_experts_per_tok=3, intermediate_size=32, rms_norm_eps=1e-6,
                    use_qk_norm=True, use_routing_bias=True, scoring_func="sigmoid")


def qwen3_vl(architecture, model_type, **changes):
    """A text model inside a larger one, and the least vision that transformers accepts."""
    text = family("", model_type + "_text", head_dim=32, rms_norm_eps=1e-6, attention_bias=False,
                  rope_scaling=dict(rope_type="default", mrope_interleaved=True, mrope_section=[6, 5, 5]),
                  rope_theta=5000000.0, **changes)
    text.pop("architectures")
    return {"architectures": [architecture], "model_type": model_type, "tie_word_embeddings": False,
            "text_config": text,
            "vision_config": dict(model_type=model_type, depth=1, hidden_size=16, intermediate_size=16, num_heads=2,
                                  out_hidden_size=64, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
                                  num_position_embeddings=16, deepstack_visual_indexes=[0])}


def qwen3_5(architecture, model_type, **changes):
    """A text model inside a larger one, and the least vision that transformers accepts."""
    text = family("", model_type + "_text", num_hidden_layers=4, head_dim=32, rms_norm_eps=1e-2, attention_bias=False,
                  linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=16, linear_value_head_dim=24,
                  linear_conv_kernel_dim=4,
                  layer_types=["linear_attention"] * 3 + ["full_attention"],
                  rope_parameters=dict(rope_type="default", mrope_interleaved=True, mrope_section=[2, 1, 1],
                                       rope_theta=10000000.0, partial_rotary_factor=0.25), **changes)
    text.pop("architectures")
    if "moe_intermediate_size" in changes:
        text.pop("intermediate_size")
    return {"architectures": [architecture], "model_type": model_type, "tie_word_embeddings": False,
            "text_config": text,
            "vision_config": dict(model_type=model_type, depth=1, hidden_size=16, intermediate_size=16, num_heads=2,
                                  out_hidden_size=64, patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
                                  num_position_embeddings=16, deepstack_visual_indexes=[])}


def lfm2(architecture, model_type, **changes):
    config = family(architecture, model_type, norm_eps=1e-5, num_hidden_layers=5, conv_bias=False, rope_theta=1000000.0,
                    layer_types=["conv", "conv", "full_attention", "conv", "full_attention"],
                    **{"conv_L_cache": 3, **changes})
    for key in ("rms_norm_eps", "tie_word_embeddings", "hidden_act"):
        config.pop(key)
    return config


def granite_hybrid(**changes):
    return family("GraniteMoeHybridForCausalLM", "granitemoehybrid", **{
        **dict(num_hidden_layers=4, rms_norm_eps=1e-3, layer_types=["mamba", "mamba", "attention", "mamba"],
               position_embedding_type="nope", mamba_n_heads=6, mamba_d_head=32, mamba_d_state=20, mamba_n_groups=1,
               mamba_d_conv=4, mamba_expand=3, mamba_conv_bias=True, mamba_proj_bias=False, mamba_chunk_size=16,
               attention_bias=False, attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22,
               logits_scaling=8.0, rope_theta=10000.0, tie_word_embeddings=True), **changes})


def nemotron_h(**changes):
    """time_step_min, which is for the start of training, would be a limit in transformers."""
    config = family("NemotronHForCausalLM", "nemotron_h", num_hidden_layers=len(changes["hybrid_override_pattern"]),
                    layer_norm_epsilon=1e-2, head_dim=32, mamba_num_heads=6, mamba_head_dim=24, ssm_state_size=20,
                    n_groups=2, conv_kernel=4, use_conv_bias=True, use_bias=False, mlp_bias=False, attention_bias=False,
                    mlp_hidden_act="relu2", mamba_hidden_act="silu", chunk_size=16, time_step_min=1e-9, **changes)
    for key in ("rms_norm_eps", "hidden_act"):
        config.pop(key)
    return config
def gemma4(architecture="Gemma4ForCausalLM", **changes):
    """Windows in two layers of three; the others have larger heads, and fewer of keys."""
    kinds = (["sliding_attention"] * 2 + ["full_attention"]) * 2
    return {**family(architecture, "gemma4_text", num_hidden_layers=6, head_dim=32, global_head_dim=64,
                     hidden_activation="gelu_pytorch_tanh", rms_norm_eps=1e-6, sliding_window=12,
                     tie_word_embeddings=True, attention_bias=False, final_logit_softcapping=30.0,
                     layer_types=kinds, num_kv_shared_layers=0, use_double_wide_mlp=False, attention_k_eq_v=False,
                     hidden_size_per_layer_input=0, vocab_size_per_layer_input=128, enable_moe_block=False,
                     num_experts=None, top_k_experts=None, num_global_key_value_heads=None,
                     rope_parameters=dict(full_attention=dict(rope_type="proportional", partial_rotary_factor=0.25,
                                                              rope_theta=1000000.0),
                                          sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
            **changes}


def gemma4_multimodal(text):
    """A text model inside a larger one, and the least vision that transformers accepts."""
    text = {key: value for key, value in text.items() if key != "architectures"}
    return {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "tie_word_embeddings": True,
            "text_config": text, "audio_config": None,
            "vision_config": dict(model_type="gemma4_vision", hidden_size=16, intermediate_size=16,
                                  num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=16,
                                  patch_size=4, position_embedding_size=16)}


# NAME: config.json
FAMILIES = {
    "llama": family("LlamaForCausalLM", "llama", rope_theta=10000.0),
    "llama_tied_bias": family("LlamaForCausalLM", "llama", rope_theta=10000.0, tie_word_embeddings=True,
                              attention_bias=True, mlp_bias=True, head_dim=32),
    "llama_llama3_rope": family("LlamaForCausalLM", "llama", rope_theta=500000.0, rope_scaling=LLAMA3_ROPE),
    "llama_yarn": family("LlamaForCausalLM", "llama", rope_parameters={**YARN_ROPE, "rope_theta": 10000.0}),
    "llama_linear_rope": family("LlamaForCausalLM", "llama", rope_theta=10000.0,
                                rope_scaling=dict(type="linear", factor=2.0)),
    "mistral": family("MistralForCausalLM", "mistral", rope_theta=1000000.0, sliding_window=None, head_dim=32),
    "ministral": family("MinistralForCausalLM", "ministral", rope_theta=1000000.0, sliding_window=256, head_dim=32,
                        layer_types=["full_attention", "full_attention"]),
    "mistral3": {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "tie_word_embeddings": False,
        "text_config": {k: v for k, v in family(
            "Ministral3ForCausalLM", "ministral3", head_dim=32, sliding_window=None,
            rope_parameters=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=16, beta_fast=32.0,
                                 beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
                                 rope_theta=1000000.0)).items() if k != "architectures"},
    },
    "mixtral": family("MixtralForCausalLM", "mixtral", rope_theta=1000000.0, sliding_window=None, num_local_experts=4,
                      num_experts_per_tok=2),
    "qwen2": family("Qwen2ForCausalLM", "qwen2", rope_theta=1000000.0, use_sliding_window=False, sliding_window=32,
                    max_window_layers=2, rms_norm_eps=1e-6),
    "qwen2_moe": family("Qwen2MoeForCausalLM", "qwen2_moe", rope_theta=1000000.0, num_experts=4,
                        num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6,
                        use_sliding_window=False),
    "qwen3": family("Qwen3ForCausalLM", "qwen3", rope_theta=1000000.0, head_dim=32, attention_bias=False,
                    tie_word_embeddings=True, rms_norm_eps=1e-6, use_sliding_window=False),
    "qwen3_yarn": family("Qwen3ForCausalLM", "qwen3", head_dim=32, attention_bias=False, rms_norm_eps=1e-6,
                         rope_parameters={**YARN_ROPE, "rope_theta": 1000000.0}),
    "qwen3_moe": family("Qwen3MoeForCausalLM", "qwen3_moe", rope_theta=1000000.0, head_dim=32, num_experts=4,
                        num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=1,
                        mlp_only_layers=[], rms_norm_eps=1e-6),
    "qwen3_moe_deferred": family("Qwen3MoeForCausalLM", "qwen3_moe", rope_theta=1000000.0, head_dim=32,
                                 num_hidden_layers=3, num_experts=6, num_experts_per_tok=3,
                                 moe_intermediate_size=32, norm_topk_prob=True, decoder_sparse_step=1,
                                 mlp_only_layers=[]),
    "gemma2": family("Gemma2ForCausalLM", "gemma2", rope_theta=10000.0, num_hidden_layers=3,
                     attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **GEMMA),
    "gemma3": family("Gemma3ForCausalLM", "gemma3_text", rope_theta=1000000.0, rope_local_base_freq=10000.0,
                     num_hidden_layers=7, sliding_window_pattern=6, **GEMMA),
    "gemma3_scaled_rope": family(
        "Gemma3ForCausalLM", "gemma3_text", num_hidden_layers=7,
        layer_types=["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        rope_parameters=dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
                             sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **GEMMA),
    "phi3": family("Phi3ForCausalLM", "phi3", rope_theta=10000.0, sliding_window=12,
                   original_max_position_embeddings=256),
    "phi3_longrope_short": family("Phi3ForCausalLM", "phi3", rope_theta=10000.0, sliding_window=None,
                                  rope_scaling=LONG_ROPE, original_max_position_embeddings=128),
    "phi3_longrope_long": family("Phi3ForCausalLM", "phi3", rope_theta=10000.0, sliding_window=None,
                                 rope_scaling=LONG_ROPE, original_max_position_embeddings=32),
    "phi4_partial_rope": family("Phi3ForCausalLM", "phi3", rope_theta=10000.0, sliding_window=None, head_dim=32,
                                num_attention_heads=2, num_key_value_heads=1, partial_rotary_factor=0.75,
                                original_max_position_embeddings=256, tie_word_embeddings=True),
    "granite": family("GraniteForCausalLM", "granite", rope_theta=10000.0, tie_word_embeddings=True,
                      attention_multiplier=0.0625, embedding_multiplier=12.0, residual_multiplier=0.22,
                      logits_scaling=8.0, attention_bias=False, mlp_bias=False),
    "smollm3": family("SmolLM3ForCausalLM", "smollm3", rope_theta=5000000.0, num_hidden_layers=5,
                      no_rope_layers=[1, 1, 1, 0, 1], no_rope_layer_interval=4, tie_word_embeddings=True,
                      use_sliding_window=False, attention_bias=False, mlp_bias=False),
    "olmo2": family("Olmo2ForCausalLM", "olmo2", rope_theta=500000.0, rms_norm_eps=1e-6, attention_bias=False),
    "olmo3": family("Olmo3ForCausalLM", "olmo3", rope_theta=500000.0, rms_norm_eps=1e-6, attention_bias=False,
                    num_hidden_layers=5, sliding_window=12,
                    rope_scaling=dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=32,
                                      beta_fast=32.0, beta_slow=1.0, attention_factor=1.2)),
    # One dense layer, two mixtures and an MTP layer.
    "glm4_moe": family("Glm4MoeForCausalLM", "glm4_moe", rope_theta=1000000.0, num_hidden_layers=3, head_dim=32,
                       attention_bias=True, use_qk_norm=False, num_nextn_predict_layers=1, routed_scaling_factor=1.5,
                       **GLM_MIXTURE),
    "glm4_moe_qk_norm": family("Glm4MoeForCausalLM", "glm4_moe", rope_theta=1000000.0, num_hidden_layers=3,
                               head_dim=32, attention_bias=True, use_qk_norm=True, num_nextn_predict_layers=0,
                               routed_scaling_factor=2.5, **{**GLM_MIXTURE, "n_shared_experts": 2}),
    "minimax_m2": MINIMAX_M2,
    # In FP8 with a scale for each block, whose sizes divide no dimension of these matrices.
    "minimax_m2_fp8": {**MINIMAX_M2, "quantization_config": dict(quant_method="fp8", fmt="float8_e4m3fn",
                                                                 activation_scheme="dynamic",
                                                                 weight_block_size=[20, 24])},
    "qwen3_vl": qwen3_vl("Qwen3VLForConditionalGeneration", "qwen3_vl"),
    "qwen3_vl_moe": qwen3_vl("Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe", num_experts=4,
                             num_experts_per_tok=2, moe_intermediate_size=96, norm_topk_prob=True,
                             decoder_sparse_step=1, mlp_only_layers=[]),
    "seed_oss": family("SeedOssForCausalLM", "seed_oss", rope_theta=10000000.0, head_dim=32, attention_bias=True,
                       attention_out_bias=False, mlp_bias=False, rms_norm_eps=1e-6),
    "ernie4_5_moe": family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", rope_theta=500000.0, num_hidden_layers=4,
                           tie_word_embeddings=True, use_bias=False, moe_num_experts=8, moe_k=3,
                           moe_intermediate_size=32, moe_num_shared_experts=2, moe_layer_start_index=1,
                           moe_layer_end_index=3, moe_layer_interval=1, moe_use_aux_free=True),
    # Without a shared expert, and with a dense layer after each mixture.
    "ernie4_5_moe_interval": family("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", rope_theta=500000.0,
                                    num_hidden_layers=4, use_bias=False, moe_num_experts=4, moe_k=2,
                                    moe_intermediate_size=32, moe_num_shared_experts=0, moe_layer_start_index=1,
                                    moe_layer_end_index=3, moe_layer_interval=2, moe_use_aux_free=True),
    "hunyuan_moe": family("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", rope_theta=10000.0, head_dim=32,
                          tie_word_embeddings=True, attention_bias=False, num_experts=8, moe_topk=[3, 3],
                          num_shared_expert=[1, 1], moe_intermediate_size=[96, 96], use_qk_norm=True,
                          rope_scaling=dict(type="dynamic", alpha=1000.0, factor=1.0)),
    # Windows and rotation in three layers of four; full attention without rotation in the last.
    "exaone_moe": family("ExaoneMoeForCausalLM", "exaone_moe", num_hidden_layers=5, head_dim=32, num_experts=8,
                         num_experts_per_tok=3, moe_intermediate_size=32, num_shared_experts=1, n_group=4,
                         topk_group=2, norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=1,
                         scoring_func="sigmoid", sliding_window=12, sliding_window_pattern="LLLG",
                         layer_types=["sliding_attention"] * 3 + ["full_attention", "sliding_attention"],
                         rope_parameters=dict(rope_type="default", rope_theta=1000000.0)),
    "bailing_moe2": family("BailingMoeV2ForCausalLM", "bailing_moe_v2", rope_theta=600000.0, num_hidden_layers=3,
                           head_dim=32, partial_rotary_factor=0.5, rms_norm_eps=1e-6, num_experts=16,
                           num_experts_per_tok=6, n_group=4, topk_group=2, moe_intermediate_size=32,
                           num_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
                           routed_scaling_factor=2.5, score_function="sigmoid", use_qk_norm=True, use_bias=False,
                           use_qkv_bias=False, num_nextn_predict_layers=1),
    # The large model: compressed queries, groups of experts ranked by their best.
    "deepseek_v2": family("DeepseekV2ForCausalLM", "deepseek_v2", q_lora_rank=48, n_routed_experts=16,
                          num_experts_per_tok=4, n_shared_experts=2, first_k_dense_replace=1, n_group=4,
                          topk_group=2, topk_method="group_limited_greedy", norm_topk_prob=False,
                          routed_scaling_factor=4.0, scoring_func="softmax", **LATENT),
    "deepseek_v2_lite": family("DeepseekV2ForCausalLM", "deepseek_v2", q_lora_rank=None, n_routed_experts=8,
                               num_experts_per_tok=3, n_shared_experts=2, first_k_dense_replace=1, n_group=1,
                               topk_group=1, topk_method="greedy", norm_topk_prob=False, routed_scaling_factor=1.0,
                               scoring_func="softmax",
                               rope_scaling=dict(type="yarn", factor=4, original_max_position_embeddings=64,
                                                 beta_fast=32, beta_slow=1, mscale=0.707, mscale_all_dim=0.707),
                               **LATENT),
    # With an MTP layer, which the file has only with --mtp.
    "deepseek_v3": {**DEEPSEEK_V3, "num_nextn_predict_layers": 1},
    # All experts are used: this one is about its weights.
    "deepseek_v3_fp8": {**DEEPSEEK_V3, "num_nextn_predict_layers": 0, "num_experts_per_tok": 8, "n_group": 1,
                        "topk_group": 1, "num_hidden_layers": 2,
                        "quantization_config": dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                                    weight_block_size=[20, 24])},
    "glm4_moe_lite": family("Glm4MoeLiteForCausalLM", "glm4_moe_lite", q_lora_rank=48, n_routed_experts=8,
                            num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1, n_group=1,
                            topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, topk_method="noaux_tc",
                            partial_rotary_factor=1.0, rope_scaling=None,
                            **{**LATENT, "num_attention_heads": 5, "num_key_value_heads": 5, "v_head_dim": 40}),
    # Three layers with the delta rule, one of attention, and one more with the delta rule. The large epsilon is for the
    # norm after it, which would magnify the rounding of Q8_0 where a head's result is near zero.
    "qwen3_next": family("Qwen3NextForCausalLM", "qwen3_next", rope_theta=10000000.0, num_hidden_layers=5, head_dim=32,
                         partial_rotary_factor=0.25, rms_norm_eps=1e-2, attention_bias=False, num_experts=4,
                         num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32,
                         norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[], linear_num_key_heads=2,
                         linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=24,
                         linear_conv_kernel_dim=4,
                         layer_types=["linear_attention"] * 3 + ["full_attention", "linear_attention"]),
    "qwen3_5": qwen3_5("Qwen3_5ForConditionalGeneration", "qwen3_5"),
    "qwen3_5_moe": qwen3_5("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe", num_experts=4, num_experts_per_tok=3,
                           moe_intermediate_size=32, shared_expert_intermediate_size=32),
    # Keys with the names of published models; the width of the feed-forward part comes out as 128.
    "lfm2": lfm2("Lfm2ForCausalLM", "lfm2", block_ff_dim=160, block_auto_adjust_ff_dim=True, block_multiple_of=64,
                 block_ffn_dim_multiplier=1.0),
    "lfm2_moe": lfm2("Lfm2MoeForCausalLM", "lfm2_moe", conv_L_cache=4, num_experts=8, num_experts_per_tok=3,
                     moe_intermediate_size=32, num_dense_layers=1, use_expert_bias=True, norm_topk_prob=True,
                     routed_scaling_factor=1.0),
    # Without positions in attention.
    "granite_hybrid": granite_hybrid(num_local_experts=4, num_experts_per_tok=2, intermediate_size=24,
                                     shared_intermediate_size=40),
    "granite_hybrid_dense": granite_hybrid(num_local_experts=0, num_experts_per_tok=0, intermediate_size=96,
                                           shared_intermediate_size=96, tie_word_embeddings=False),
    # Granite 4 Micro has the class of the hybrids and no such layers: a Granite 3 by another name.
    "granite4_dense": granite_hybrid(layer_types=["attention"] * 2, num_hidden_layers=2, position_embedding_type="rope",
                                     num_local_experts=0, num_experts_per_tok=0, intermediate_size=96,
                                     shared_intermediate_size=96),
    "nemotron_h": nemotron_h(hybrid_override_pattern="M-M*-M-"),
    # With experts in a narrower space, all of which are used: after several mixtures rounding would change the choice.
    "nemotron_h_moe": nemotron_h(hybrid_override_pattern="MEM*EME", n_routed_experts=8, num_experts_per_tok=8,
                                 moe_intermediate_size=40, moe_shared_expert_intermediate_size=48, n_shared_experts=1,
                                 moe_latent_size=32, n_group=1, topk_group=1, norm_topk_prob=True,
                                 routed_scaling_factor=2.5),
    "nemotron_h_moe_wide": nemotron_h(hybrid_override_pattern="ME*E", n_routed_experts=8, num_experts_per_tok=3,
                                      moe_intermediate_size=40, moe_shared_expert_intermediate_size=48,
                                      n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True,
                                      routed_scaling_factor=2.5),
    # The dense model: of layers with full attention, values are the keys before their norm.
    "gemma4": gemma4_multimodal(gemma4(attention_k_eq_v=True, num_global_key_value_heads=1)),
    # The dense model of another class, whose vision and audio are other ones; only its text model.
    "gemma4_unified": {"architectures": ["Gemma4UnifiedForConditionalGeneration"], "model_type": "gemma4_unified",
                       "tie_word_embeddings": True,
                       "text_config": {k: v for k, v in gemma4(
                           attention_k_eq_v=True, num_global_key_value_heads=2,
                           model_type="gemma4_unified_text").items() if k != "architectures"}},
    # Experts beside the dense unit.
    "gemma4_moe": gemma4(attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=8,
                         top_k_experts=3, moe_intermediate_size=32),
    # Embeddings of each layer, and last layers that read the caches of earlier ones.
    "gemma4_shared": gemma4(hidden_size_per_layer_input=32, num_kv_shared_layers=3, use_double_wide_mlp=True),
    "gpt_oss": GPT_OSS,
    "gpt_oss_bf16": GPT_OSS,
}
