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
    "gpt_oss": GPT_OSS,
    "gpt_oss_bf16": GPT_OSS,
}
