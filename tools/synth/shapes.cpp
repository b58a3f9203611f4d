#include "tools/synth/shapes.h"

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "tools/synth/gemma4_shapes.h"
#include "tools/synth/tensor_list.h"

namespace tandem::tools {
namespace {

using enum VocabKind;

constexpr Shape with(Shape shape, const Gemma4Shape& gemma4) {
  shape.gemma4 = gemma4;
  return shape;
}

// clang-format off
constexpr Shape kShapes[] = {
    // name, title, arch, layers, embd, heads, kv heads, head dim, ff, vocab, vocab size, ctx, rope base, eps, ...
    {"tinyllama-1.1b", "TinyLlama 1.1B Chat v1.0", "llama", 22, 2048, 32, 4, 64, 5632,
     spm_llama, 32000, 2048, 1e4f, 1e-5f},
    {"llama-2-7b", "Llama 2 7B", "llama", 32, 4096, 32, 32, 128, 11008, spm_llama, 32000, 4096, 1e4f, 1e-5f},
    {"llama-2-13b", "Llama 2 13B", "llama", 40, 5120, 40, 40, 128, 13824, spm_llama, 32000, 4096, 1e4f, 1e-5f},
    {"llama-2-70b", "Llama 2 70B", "llama", 80, 8192, 64, 8, 128, 28672, spm_llama, 32000, 4096, 1e4f, 1e-5f},
    {"llama-3-8b", "Meta Llama 3 8B Instruct", "llama", 32, 4096, 32, 8, 128, 14336,
     bpe_llama3, 128256, 8192, 5e5f, 1e-5f},
    {"llama-3-70b", "Meta Llama 3 70B Instruct", "llama", 80, 8192, 64, 8, 128, 28672,
     bpe_llama3, 128256, 8192, 5e5f, 1e-5f},
    {"llama-3.1-8b", "Llama 3.1 8B Instruct", "llama", 32, 4096, 32, 8, 128, 14336,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, false, 8},
    {"llama-3.1-70b", "Llama 3.1 70B Instruct", "llama", 80, 8192, 64, 8, 128, 28672,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, false, 8},
    {"llama-3.1-405b", "Llama 3.1 405B Instruct", "llama", 126, 16384, 128, 8, 128, 53248,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, false, 8},
    {"llama-3.2-1b", "Llama 3.2 1B Instruct", "llama", 16, 2048, 32, 8, 64, 8192,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, true, 32},
    {"llama-3.2-3b", "Llama 3.2 3B Instruct", "llama", 28, 3072, 24, 8, 128, 8192,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, true, 32},
    {"llama-3.3-70b", "Llama 3.3 70B Instruct", "llama", 80, 8192, 64, 8, 128, 28672,
     bpe_llama3, 128256, 131072, 5e5f, 1e-5f, false, 8},
    {"mistral-7b", "Mistral 7B Instruct v0.2", "llama", 32, 4096, 32, 8, 128, 14336,
     spm_llama, 32000, 32768, 1e6f, 1e-5f},
    {"mistral-nemo-12b", "Mistral Nemo 12B Instruct 2407", "llama", 40, 5120, 32, 8, 128, 14336,
     bpe_llama3, 131072, 131072, 1e6f, 1e-5f},
    {"mistral-small-24b", "Mistral Small 24B Instruct 2501", "llama", 40, 5120, 32, 8, 128, 32768,
     bpe_llama3, 131072, 32768, 1e8f, 1e-5f},
    {"codestral-22b", "Codestral 22B v0.1", "llama", 56, 6144, 48, 8, 128, 16384,
     spm_llama, 32768, 32768, 1e6f, 1e-5f},
    {"mistral-large-123b", "Mistral Large 123B Instruct 2407", "llama", 88, 12288, 96, 8, 128, 28672,
     spm_llama, 32768, 131072, 1e6f, 1e-5f},
    {"mixtral-8x7b", "Mixtral 8x7B Instruct v0.1", "llama", 32, 4096, 32, 8, 128, 14336,
     spm_llama, 32000, 32768, 1e6f, 1e-5f, false, 0, 8, 2, 14336},
    {"mixtral-8x22b", "Mixtral 8x22B Instruct v0.1", "llama", 56, 6144, 48, 8, 128, 16384,
     spm_llama, 32768, 65536, 1e6f, 1e-5f, false, 0, 8, 2, 16384},
    {"smollm2-135m", "SmolLM2 135M Instruct", "llama", 30, 576, 9, 3, 64, 1536,
     bpe_llama3, 49152, 8192, 1e5f, 1e-5f, true},
    {"smollm2-360m", "SmolLM2 360M Instruct", "llama", 32, 960, 15, 5, 64, 2560,
     bpe_llama3, 49152, 8192, 1e5f, 1e-5f, true},
    {"smollm2-1.7b", "SmolLM2 1.7B Instruct", "llama", 24, 2048, 32, 32, 64, 8192,
     bpe_llama3, 49152, 8192, 1.3e5f, 1e-5f, true},
    {"qwen2.5-0.5b", "Qwen2.5 0.5B Instruct", "qwen2", 24, 896, 14, 2, 64, 4864,
     bpe_qwen, 151936, 32768, 1e6f, 1e-6f, true},
    {"qwen2.5-1.5b", "Qwen2.5 1.5B Instruct", "qwen2", 28, 1536, 12, 2, 128, 8960,
     bpe_qwen, 151936, 32768, 1e6f, 1e-6f, true},
    {"qwen2.5-3b", "Qwen2.5 3B Instruct", "qwen2", 36, 2048, 16, 2, 128, 11008,
     bpe_qwen, 151936, 32768, 1e6f, 1e-6f, true},
    {"qwen2.5-7b", "Qwen2.5 7B Instruct", "qwen2", 28, 3584, 28, 4, 128, 18944,
     bpe_qwen, 152064, 32768, 1e6f, 1e-6f},
    {"qwen2.5-14b", "Qwen2.5 14B Instruct", "qwen2", 48, 5120, 40, 8, 128, 13824,
     bpe_qwen, 152064, 32768, 1e6f, 1e-6f},
    {"qwen2.5-32b", "Qwen2.5 32B Instruct", "qwen2", 64, 5120, 40, 8, 128, 27648,
     bpe_qwen, 152064, 32768, 1e6f, 1e-6f},
    {"qwen2.5-72b", "Qwen2.5 72B Instruct", "qwen2", 80, 8192, 64, 8, 128, 29568,
     bpe_qwen, 152064, 32768, 1e6f, 1e-6f},
    {"qwen3-0.6b", "Qwen3 0.6B", "qwen3", 28, 1024, 16, 8, 128, 3072, bpe_qwen, 151936, 40960, 1e6f, 1e-6f, true},
    {"qwen3-1.7b", "Qwen3 1.7B", "qwen3", 28, 2048, 16, 8, 128, 6144, bpe_qwen, 151936, 40960, 1e6f, 1e-6f, true},
    {"qwen3-4b", "Qwen3 4B", "qwen3", 36, 2560, 32, 8, 128, 9728, bpe_qwen, 151936, 40960, 1e6f, 1e-6f, true},
    {"qwen3-8b", "Qwen3 8B", "qwen3", 36, 4096, 32, 8, 128, 12288, bpe_qwen, 151936, 40960, 1e6f, 1e-6f},
    {"qwen3-14b", "Qwen3 14B", "qwen3", 40, 5120, 40, 8, 128, 17408, bpe_qwen, 151936, 40960, 1e6f, 1e-6f},
    {"qwen3-32b", "Qwen3 32B", "qwen3", 64, 5120, 64, 8, 128, 25600, bpe_qwen, 151936, 40960, 1e6f, 1e-6f},
    {"qwen3-30b-a3b", "Qwen3 30B A3B", "qwen3moe", 48, 2048, 32, 4, 128, 6144,
     bpe_qwen, 151936, 40960, 1e6f, 1e-6f, false, 0, 128, 8, 768},
    {"qwen3-235b-a22b", "Qwen3 235B A22B", "qwen3moe", 94, 4096, 64, 4, 128, 12288,
     bpe_qwen, 151936, 40960, 1e6f, 1e-6f, false, 0, 128, 8, 1536},
    {"gemma-2-2b", "Gemma 2 2B It", "gemma2", 26, 2304, 8, 4, 256, 9216,
     spm_gemma, 256000, 8192, 1e4f, 1e-6f, true, 0, 0, 0, 0, 4096},
    {"gemma-2-9b", "Gemma 2 9B It", "gemma2", 42, 3584, 16, 8, 256, 14336,
     spm_gemma, 256000, 8192, 1e4f, 1e-6f, true, 0, 0, 0, 0, 4096},
    {"gemma-2-27b", "Gemma 2 27B It", "gemma2", 46, 4608, 32, 16, 128, 36864,
     spm_gemma, 256000, 8192, 1e4f, 1e-6f, true, 0, 0, 0, 0, 4096},
    {"gemma-3-270m", "Gemma 3 270M It", "gemma3", 18, 640, 4, 1, 256, 2048,
     spm_gemma, 262144, 32768, 1e6f, 1e-6f, true, 0, 0, 0, 0, 512},
    {"gemma-3-1b", "Gemma 3 1B It", "gemma3", 26, 1152, 4, 1, 256, 6912,
     spm_gemma, 262144, 32768, 1e6f, 1e-6f, true, 0, 0, 0, 0, 512},
    {"gemma-3-4b", "Gemma 3 4B It", "gemma3", 34, 2560, 8, 4, 256, 10240,
     spm_gemma, 262144, 131072, 1e6f, 1e-6f, true, 0, 0, 0, 0, 1024},
    {"gemma-3-12b", "Gemma 3 12B It", "gemma3", 48, 3840, 16, 8, 256, 15360,
     spm_gemma, 262144, 131072, 1e6f, 1e-6f, true, 0, 0, 0, 0, 1024},
    {"gemma-3-27b", "Gemma 3 27B It", "gemma3", 62, 5376, 32, 16, 128, 21504,
     spm_gemma, 262144, 131072, 1e6f, 1e-6f, true, 0, 0, 0, 0, 1024},
    with({"gemma-4-31b", "Gemma 4 31B It", "gemma4", 60, 5376, 32, 16, 256, 21504,
          spm_gemma, 262144, 262144, 1e6f, 1e-6f, true, 0, 0, 0, 0, 1024},
         {.head_dim_full = 512, .n_head_kv_full = 4, .values_are_keys = true}),
    with({"gemma-4-26b-a4b", "Gemma 4 26B A4B It", "gemma4", 30, 2816, 16, 8, 256, 2112,
          spm_gemma, 262144, 262144, 1e6f, 1e-6f, true, 0, 128, 8, 704, 1024},
         {.head_dim_full = 512, .n_head_kv_full = 2, .values_are_keys = true}),
    with({"gemma-4-e4b", "Gemma 4 E4B It", "gemma4", 42, 2560, 8, 2, 256, 10240,
          spm_gemma, 262144, 131072, 1e6f, 1e-6f, true, 0, 0, 0, 0, 512},
         {.head_dim_full = 512, .n_head_kv_full = 2, .n_shared = 18, .n_input = 256}),
    with({"gemma-4-e2b", "Gemma 4 E2B It", "gemma4", 35, 1536, 8, 1, 256, 6144,
          spm_gemma, 262144, 131072, 1e6f, 1e-6f, true, 0, 0, 0, 0, 512},
         {.head_dim_full = 512, .n_head_kv_full = 1, .period = 5, .n_shared = 20, .shared_width = 2, .n_input = 256}),
    {"phi-3-mini", "Phi 3 Mini 4K Instruct", "phi3", 32, 3072, 32, 32, 96, 8192,
     spm_llama, 32064, 4096, 1e4f, 1e-5f, false, 0, 0, 0, 0, 2047},
    {"phi-3-medium", "Phi 3 Medium 4K Instruct", "phi3", 40, 5120, 40, 10, 128, 17920,
     spm_llama, 32064, 4096, 1e4f, 1e-5f, false, 0, 0, 0, 0, 2047},
    {"phi-4", "Phi 4", "phi3", 40, 5120, 40, 10, 128, 17920, bpe_llama3, 100352, 16384, 2.5e5f, 1e-5f},
    {"smollm3-3b", "SmolLM3 3B", "smollm3", 36, 2048, 16, 4, 128, 11008,
     bpe_llama3, 128256, 65536, 5e6f, 1e-6f, true},
    {"olmo-2-1b", "OLMo 2 1B Instruct", "olmo2", 16, 2048, 16, 16, 128, 8192,
     bpe_llama3, 100352, 4096, 5e5f, 1e-6f},
    {"olmo-2-7b", "OLMo 2 7B Instruct", "olmo2", 32, 4096, 32, 32, 128, 11008,
     bpe_llama3, 100352, 4096, 5e5f, 1e-6f},
    {"olmo-2-13b", "OLMo 2 13B Instruct", "olmo2", 40, 5120, 40, 40, 128, 13824,
     bpe_llama3, 100352, 4096, 5e5f, 1e-6f},
    {"olmo-2-32b", "OLMo 2 32B Instruct", "olmo2", 64, 5120, 40, 8, 128, 27648,
     bpe_llama3, 100352, 4096, 5e5f, 1e-6f},
    {"qwen1.5-moe-a2.7b", "Qwen1.5 MoE A2.7B Chat", "qwen2moe", 24, 2048, 16, 16, 128, 5632,
     bpe_qwen, 151936, 8192, 1e6f, 1e-6f, false, 0, 60, 4, 1408, 0, 5632},
    {"gpt-oss-20b", "gpt-oss 20B", "gpt-oss", 24, 2880, 64, 8, 64, 2880,
     bpe_qwen, 201088, 131072, 1.5e5f, 1e-5f, false, 0, 32, 4, 2880, 128},
    {"gpt-oss-120b", "gpt-oss 120B", "gpt-oss", 36, 2880, 64, 8, 64, 2880,
     bpe_qwen, 201088, 131072, 1.5e5f, 1e-5f, false, 0, 128, 4, 2880, 128},
    // Without their MTP layers, which are not loaded.
    {"glm-4.5-air", "GLM 4.5 Air", "glm4moe", 46, 4096, 96, 8, 128, 10944,
     bpe_llama3, 151552, 131072, 1e6f, 1e-5f, false, 0, 128, 8, 1408, 0, 1408, 1, 64},
    {"glm-4.5", "GLM 4.5", "glm4moe", 92, 5120, 96, 8, 128, 12288,
     bpe_llama3, 151552, 131072, 1e6f, 1e-5f, false, 0, 160, 8, 1536, 0, 1536, 3, 64, true},
    {"minimax-m2", "MiniMax M2", "minimax-m2", 62, 3072, 48, 8, 128, 1536,
     bpe_qwen, 200064, 196608, 5e6f, 1e-6f, false, 0, 256, 8, 1536, 0, 0, 0, 64},
    {"deepseek-v2-lite", "DeepSeek V2 Lite Chat", "deepseek2", 27, 2048, 16, 1, 192, 10944,
     bpe_llama3, 102400, 163840, 1e4f, 1e-6f, false, 0, 64, 6, 1408, 0, 2816, 1, 64, false, 0, 512, 128},
    {"deepseek-v3", "DeepSeek V3", "deepseek2", 61, 7168, 128, 1, 192, 18432,
     bpe_llama3, 129280, 163840, 1e4f, 1e-6f, false, 0, 256, 8, 2048, 0, 2048, 3, 64, false, 1536, 512, 128,
     true, 8, 4},
    {"kimi-k2", "Kimi K2 Instruct", "deepseek2", 61, 7168, 64, 1, 192, 18432,
     bpe_llama3, 163840, 131072, 5e4f, 1e-6f, false, 0, 384, 8, 2048, 0, 2048, 1, 64, false, 1536, 512, 128, true},
    {"glm-4.7-flash", "GLM 4.7 Flash", "deepseek2", 47, 2048, 20, 1, 256, 10240,
     bpe_llama3, 154880, 202752, 1e6f, 1e-5f, false, 0, 64, 4, 1536, 0, 1536, 1, 64, false, 768, 512, 256, true},
    {"seed-oss-36b", "Seed OSS 36B Instruct", "seed_oss", 64, 5120, 80, 8, 128, 27648,
     bpe_qwen, 155136, 524288, 1e7f, 1e-6f},
    {"qwen3-next-80b-a3b", "Qwen3 Next 80B A3B Instruct", "qwen3next", 48, 2048, 16, 2, 256, 5120,
     bpe_qwen, 151936, 262144, 1e7f, 1e-6f, false, 0, 512, 10, 512, 0, 512, 0, 64, true, 0, 0, 0, false, 0, 0, 16, 32},
    {"lfm2-8b-a1b", "LFM2 8B A1B", "lfm2moe", 24, 2048, 32, 8, 64, 7168,
     bpe_llama3, 65536, 128000, 1e6f, 1e-5f, true, 0, 32, 4, 1792, 0, 0, 2, 0, true, 0, 0, 0, true, 0, 0, 0, 0,
     "CC*CCC*CCC*CCC*CCC*CC*CC", 3},
    {"granite-4-h-small", "Granite 4.0 H Small", "granitehybrid", 40, 4096, 32, 8, 128, 768,
     bpe_llama3, 100352, 131072, 1e4f, 1e-5f, true, 0, 72, 10, 768, 0, 1536, 0, 0, false, 0, 0, 0, false, 0, 0, 0, 0,
     "MMMMM*MMMMMMMMM*MMMMMMMMM*MMMMMMMMM*MMMM", 4, 128, 64, 1, 128},
    {"nemotron-3-nano", "NVIDIA Nemotron 3 Nano 30B A3B", "nemotron_h_moe", 52, 2688, 32, 2, 128, 1856,
     bpe_llama3, 131072, 262144, 1e4f, 1e-5f, false, 0, 128, 6, 1856, 0, 3712, 0, 0, false, 0, 0, 0, true, 0, 0, 0, 0,
     "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME", 4, 64, 64, 8, 128},
    {"qwen3.6-35b-a3b", "Qwen3.6 35B A3B", "qwen35moe", 40, 2048, 16, 2, 256, 512,
     bpe_qwen, 248320, 262144, 1e7f, 1e-6f, false, 0, 256, 8, 512, 0, 512, 0, 64, true, 0, 0, 0, false, 0, 0, 16, 32},
};
// clang-format on

// Whether attention and feed-forward results are normalized.
bool has_post_norms(const Shape& s) {
  return s.arch == "gemma2" || s.arch == "gemma3" || s.arch == "olmo2";
}
// Whether their inputs are.
bool has_pre_norms(const Shape& s) {
  return s.arch != "olmo2";
}

bool has_qkv_biases(const Shape& s) {
  return s.arch == "qwen2" || s.arch == "qwen2moe" || s.arch == "gpt-oss" || s.arch == "glm4moe" ||
         s.arch == "seed_oss";
}
// Whether experts are chosen by sigmoid scores plus a bias.
bool has_sigmoid_scores(const Shape& s) {
  return s.arch == "glm4moe" || s.arch == "minimax-m2" || s.sigmoid_scores;
}

// One row a token, of which all heads make their keys and values.
void add_latent_attention(const Shape& s, const std::string& block, TensorList& list) {
  const int64_t n_q = int64_t{s.n_head} * s.head_dim;
  if (s.q_rank > 0) {
    list.matrix(block + "attn_q_a.weight", s.n_embd, s.q_rank);
    list.vector(block + "attn_q_a_norm.weight", TensorRole::norm, s.q_rank);
    list.matrix(block + "attn_q_b.weight", s.q_rank, n_q);
  } else {
    list.matrix(block + "attn_q.weight", s.n_embd, n_q);
  }
  list.matrix(block + "attn_kv_a_mqa.weight", s.n_embd, s.rank + s.n_rot);
  list.vector(block + "attn_kv_a_norm.weight", TensorRole::norm, s.rank);
  list.matrix(block + "attn_k_b.weight", s.head_dim - s.n_rot, s.rank, s.n_head);
  list.matrix(block + "attn_v_b.weight", s.rank, s.value_dim, s.n_head);
  list.matrix(block + "attn_output.weight", int64_t{s.n_head} * s.value_dim, s.n_embd);
}

constexpr int kDeltaHeadDim = 128, kDeltaConv = 4, kDeltaPeriod = 4;

bool has_delta_net(const Shape& s, int layer) {
  return s.n_delta_v > 0 && (layer + 1) % kDeltaPeriod != 0;
}

void add_delta_net(const Shape& s, const std::string& block, TensorList& list) {
  const int64_t n_v = int64_t{s.n_delta_v} * kDeltaHeadDim;
  const int64_t n_qkv = 2 * int64_t{s.n_delta_k} * kDeltaHeadDim + n_v;
  list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  list.matrix(block + "attn_qkv.weight", s.n_embd, n_qkv);
  list.matrix(block + "attn_gate.weight", s.n_embd, n_v);
  if (s.arch == "qwen3next") {
    list.matrix(block + "ssm_ba.weight", s.n_embd, 2 * int64_t{s.n_delta_v});
  } else {
    list.matrix(block + "ssm_beta.weight", s.n_embd, s.n_delta_v);
    list.matrix(block + "ssm_alpha.weight", s.n_embd, s.n_delta_v);
  }
  list.biases(block + "ssm_conv1d.weight", kDeltaConv, n_qkv);
  list.vector(block + "ssm_a", TensorRole::decay, s.n_delta_v);
  list.vector(block + "ssm_dt.bias", TensorRole::bias, s.n_delta_v);
  list.vector(block + "ssm_norm.weight", TensorRole::norm, kDeltaHeadDim);
  list.matrix(block + "ssm_out.weight", n_v, s.n_embd);
}

void add_short_conv(const Shape& s, const std::string& block, TensorList& list) {
  list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  list.biases(block + "shortconv.conv.weight", s.n_conv, s.n_embd);
  list.matrix(block + "shortconv.in_proj.weight", s.n_embd, int64_t{3} * s.n_embd);
  list.matrix(block + "shortconv.out_proj.weight", s.n_embd, s.n_embd);
}

void add_mamba2(const Shape& s, const std::string& block, TensorList& list) {
  const int64_t n_inner = s.n_ssm_inner(), n_xbc = n_inner + int64_t{2} * s.n_ssm_group * s.n_ssm_state;
  list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  list.matrix(block + "ssm_in.weight", s.n_embd, n_inner + n_xbc + s.n_ssm_head);
  list.biases(block + "ssm_conv1d.weight", s.n_conv, n_xbc);
  list.vector(block + "ssm_conv1d.bias", TensorRole::bias, n_xbc);
  list.vector(block + "ssm_a", TensorRole::decay, s.n_ssm_head);
  list.vector(block + "ssm_d", TensorRole::norm, s.n_ssm_head);
  list.vector(block + "ssm_dt.bias", TensorRole::bias, s.n_ssm_head);
  list.rows(block + "ssm_norm.weight", TensorRole::norm, n_inner / s.n_ssm_group, s.n_ssm_group);
  list.matrix(block + "ssm_out.weight", n_inner, s.n_embd);
}

// Experts without gates, and the norm before them.
void add_plain_mixture(const Shape& s, const std::string& block, TensorList& list) {
  list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  list.router(block + "ffn_gate_inp.weight", s.n_embd, s.n_expert);
  list.vector(block + "exp_probs_b.bias", TensorRole::bias, s.n_expert);
  list.matrix(block + "ffn_up_exps.weight", s.n_embd, s.n_ff_expert, s.n_expert);
  list.matrix(block + "ffn_down_exps.weight", s.n_ff_expert, s.n_embd, s.n_expert);
  list.matrix(block + "ffn_up_shexp.weight", s.n_embd, s.n_ff_shared);
  list.matrix(block + "ffn_down_shexp.weight", s.n_ff_shared, s.n_embd);
}

void add_attention(const Shape& s, const std::string& block, TensorList& list) {
  const int64_t n_q = int64_t{s.n_head} * s.head_dim, n_kv = int64_t{s.n_head_kv} * s.head_dim;
  if (has_pre_norms(s)) list.vector(block + "attn_norm.weight", TensorRole::norm, s.n_embd);
  if (s.rank > 0) return add_latent_attention(s, block, list);
  if (s.arch == "phi3") {
    list.matrix(block + "attn_qkv.weight", s.n_embd, n_q + 2 * n_kv);
  } else {
    list.matrix(block + "attn_q.weight", s.n_embd, s.n_delta_v > 0 ? 2 * n_q : n_q);  // with gates
    list.matrix(block + "attn_k.weight", s.n_embd, n_kv);
    list.matrix(block + "attn_v.weight", s.n_embd, n_kv);
  }
  list.matrix(block + "attn_output.weight", n_q, s.n_embd);
  if (has_qkv_biases(s)) {
    list.vector(block + "attn_q.bias", TensorRole::bias, n_q);
    list.vector(block + "attn_k.bias", TensorRole::bias, n_kv);
    list.vector(block + "attn_v.bias", TensorRole::bias, n_kv);
  }
  if (s.arch == "gpt-oss") {
    list.vector(block + "attn_output.bias", TensorRole::bias, s.n_embd);
    list.vector(block + "attn_sinks.weight", TensorRole::bias, s.n_head);
  }
  if (s.arch == "qwen3" || s.arch == "qwen3moe" || s.arch == "gemma3" || s.head_norms) {
    list.vector(block + "attn_q_norm.weight", TensorRole::norm, s.head_dim);
    list.vector(block + "attn_k_norm.weight", TensorRole::norm, s.head_dim);
  }
  if (s.arch == "olmo2" || s.arch == "minimax-m2") {  // of whole rows, not of each head
    list.vector(block + "attn_q_norm.weight", TensorRole::norm, n_q);
    list.vector(block + "attn_k_norm.weight", TensorRole::norm, n_kv);
  }
  if (has_post_norms(s)) list.vector(block + "post_attention_norm.weight", TensorRole::norm, s.n_embd);
}

void add_feed_forward(const Shape& s, int layer, const std::string& block, TensorList& list) {
  const bool after_attention =
      s.arch == "gpt-oss" || s.arch == "glm4moe" || s.arch == "seed_oss" || s.n_delta_v > 0;
  const char* norm = after_attention ? "post_attention_norm.weight" : "ffn_norm.weight";
  if (has_pre_norms(s)) list.vector(block + norm, TensorRole::norm, s.n_embd);
  if (s.n_expert > 0 && layer >= s.n_dense) {
    list.router(block + "ffn_gate_inp.weight", s.n_embd, s.n_expert);
    list.matrix(block + "ffn_gate_exps.weight", s.n_embd, s.n_ff_expert, s.n_expert);
    list.matrix(block + "ffn_up_exps.weight", s.n_embd, s.n_ff_expert, s.n_expert);
    list.matrix(block + "ffn_down_exps.weight", s.n_ff_expert, s.n_embd, s.n_expert);
    if (s.arch == "gpt-oss") {
      list.vector(block + "ffn_gate_inp.bias", TensorRole::bias, s.n_expert);
      list.biases(block + "ffn_gate_exps.bias", s.n_ff_expert, s.n_expert);
      list.biases(block + "ffn_up_exps.bias", s.n_ff_expert, s.n_expert);
      list.biases(block + "ffn_down_exps.bias", s.n_embd, s.n_expert);
    }
    if (has_sigmoid_scores(s)) list.vector(block + "exp_probs_b.bias", TensorRole::bias, s.n_expert);
    if (s.n_ff_shared > 0) {
      if (s.arch == "qwen2moe" || s.n_delta_v > 0)
        list.vector(block + "ffn_gate_inp_shexp.weight", TensorRole::bias, s.n_embd);
      list.matrix(block + "ffn_gate_shexp.weight", s.n_embd, s.n_ff_shared);
      list.matrix(block + "ffn_up_shexp.weight", s.n_embd, s.n_ff_shared);
      list.matrix(block + "ffn_down_shexp.weight", s.n_ff_shared, s.n_embd);
    }
  } else if (s.arch == "phi3") {
    list.matrix(block + "ffn_up.weight", s.n_embd, int64_t{2} * s.n_ff);
    list.matrix(block + "ffn_down.weight", s.n_ff, s.n_embd);
  } else {
    list.matrix(block + "ffn_gate.weight", s.n_embd, s.n_ff);
    list.matrix(block + "ffn_up.weight", s.n_embd, s.n_ff);
    list.matrix(block + "ffn_down.weight", s.n_ff, s.n_embd);
  }
  if (has_post_norms(s)) list.vector(block + "post_ffw_norm.weight", TensorRole::norm, s.n_embd);
}

}  // namespace

std::span<const Shape> all_shapes() {
  return kShapes;
}

const Shape* find_shape(std::string_view name) {
  for (const Shape& shape : kShapes) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

std::vector<std::string_view> shape_names() {
  std::vector<std::string_view> names;
  for (const Shape& shape : kShapes) names.push_back(shape.name);
  return names;
}

std::vector<ShapeTensor> tensors_of(const Shape& s) {
  if (s.gemma4.head_dim_full > 0) return gemma4_tensors_of(s);
  TensorList list;
  list.matrix("token_embd.weight", s.n_embd, s.n_vocab);
  if (s.rope_factor != 0) list.vector("rope_freqs.weight", TensorRole::rope_factors, s.head_dim / 2);
  for (int i = 0; i < s.n_layer; ++i) {
    const std::string block = format("blk.{}.", i);
    if (has_delta_net(s, i)) {
      add_delta_net(s, block, list);
    } else {
      switch (s.kind(i)) {
        case 'C': add_short_conv(s, block, list); break;
        case 'M': add_mamba2(s, block, list); break;
        case 'E': add_plain_mixture(s, block, list); break;
        default: add_attention(s, block, list);
      }
    }
    if (!s.has_one_part()) add_feed_forward(s, i, block, list);
  }
  list.vector(s.arch.starts_with("lfm2") ? "token_embd_norm.weight" : "output_norm.weight", TensorRole::norm,
              s.n_embd);
  if (!s.tied) list.matrix("output.weight", s.n_embd, s.n_vocab);
  return list.take();
}

void add_hyperparameters(const Shape& s, Metadata& metadata) {
  const std::string prefix = std::string(s.arch) + ".";
  const auto set_count = [&](const char* key, int value) {
    metadata.set(prefix + key, Value(static_cast<uint32_t>(value)));
  };
  const auto set_float = [&](const char* key, float value) { metadata.set(prefix + key, Value(value)); };

  metadata.set("general.architecture", Value(std::string(s.arch)));
  metadata.set("general.type", Value("model"));
  metadata.set("general.name", Value(std::string(s.title)));
  metadata.set("general.description",
               Value("Random weights in the shape of this model, made by tandem synth"));
  set_count("block_count", s.n_layer);
  set_count("context_length", s.n_ctx);
  set_count("embedding_length", s.n_embd);
  set_count("feed_forward_length", s.n_ff);
  set_count("attention.head_count", s.n_head);
  set_count("attention.head_count_kv", s.n_head_kv);
  if (!s.kinds.empty()) {
    std::vector<int32_t> n_head_kv;
    for (int i = 0; i < s.n_layer; ++i) n_head_kv.push_back(s.kind(i) == '*' ? s.n_head_kv : 0);
    metadata.set(prefix + "attention.head_count_kv", Value(n_head_kv));
  }
  if (s.arch.starts_with("lfm2")) set_count("shortconv.l_cache", s.n_conv);
  if (s.n_ssm_head > 0) {
    set_count("ssm.conv_kernel", s.n_conv);
    set_count("ssm.state_size", s.n_ssm_state);
    set_count("ssm.group_count", s.n_ssm_group);
    set_count("ssm.time_step_rank", s.n_ssm_head);
    set_count("ssm.inner_size", s.n_ssm_inner());
  }
  if (s.has_one_part()) {
    std::vector<int32_t> n_ff;
    for (int i = 0; i < s.n_layer; ++i) n_ff.push_back(s.kind(i) == 'E' ? s.n_ff : 0);
    metadata.set(prefix + "feed_forward_length", Value(n_ff));
  }
  if (s.arch == "granitehybrid") {
    set_float("attention.scale", 0.0078125f);
    set_float("embedding_scale", 12.0f);
    set_float("residual_scale", 0.22f);
    set_float("logit_scale", 16.0f);
  }
  set_count("attention.key_length", s.rank > 0 ? s.rank + s.n_rot : s.head_dim);
  set_count("attention.value_length", s.rank > 0 ? s.rank : s.head_dim);
  if (s.rank > 0) {
    if (s.q_rank > 0) set_count("attention.q_lora_rank", s.q_rank);
    set_count("attention.kv_lora_rank", s.rank);
    set_count("attention.key_length_mla", s.head_dim);
    set_count("attention.value_length_mla", s.value_dim);
  }
  set_float("attention.layer_norm_rms_epsilon", s.rms_eps);
  set_float("rope.freq_base", s.rope_freq_base);
  set_count("vocab_size", s.n_vocab);
  if (s.arch == "llama" || s.arch == "phi3" || s.arch == "smollm3")
    set_count("rope.dimension_count", s.head_dim);
  if (s.n_rot > 0) set_count("rope.dimension_count", s.n_rot);
  if (s.n_expert > 0) {
    set_count("expert_count", s.n_expert);
    set_count("expert_used_count", s.n_expert_used);
    if (s.arch != "llama") set_count("expert_feed_forward_length", s.n_ff_expert);
    if (s.n_ff_shared > 0) set_count("expert_shared_feed_forward_length", s.n_ff_shared);
    if (s.n_ff_shared > 0 && s.arch != "qwen2moe" && s.n_delta_v == 0) set_count("expert_shared_count", 1);
    if (s.n_dense > 0) set_count("leading_dense_block_count", s.n_dense);
    if (has_sigmoid_scores(s)) set_count("expert_gating_func", 2);
    if (s.n_group > 0) {
      set_count("expert_group_count", s.n_group);
      set_count("expert_group_used_count", s.n_group_used);
    }
  }
  if (s.n_delta_v > 0) {
    set_count("ssm.conv_kernel", kDeltaConv);
    set_count("ssm.state_size", kDeltaHeadDim);
    set_count("ssm.group_count", s.n_delta_k);
    set_count("ssm.time_step_rank", s.n_delta_v);
    set_count("ssm.inner_size", s.n_delta_v * kDeltaHeadDim);
    set_count("full_attention_interval", kDeltaPeriod);
  }
  if (s.arch == "gemma2") {
    set_float("attn_logit_softcapping", 50.0f);
    set_float("final_logit_softcapping", 30.0f);
  }
  if (s.window > 0) set_count("attention.sliding_window", s.window);
  if (s.gemma4.head_dim_full > 0) add_gemma4_hyperparameters(s, metadata);
  if (s.arch == "phi3") set_count("rope.scaling.original_context_length", s.n_ctx);
  if (s.arch == "gpt-oss") {
    metadata.set(prefix + "rope.scaling.type", Value("yarn"));
    set_float("rope.scaling.factor", 32.0f);
    set_count("rope.scaling.original_context_length", 4096);
  }
}

std::vector<float> rope_factors(const Shape& s) {
  return s.gemma4.head_dim_full > 0 ? gemma4_rope_factors(s) : llama3_rope_factors(s);
}

std::vector<float> llama3_rope_factors(const Shape& s) {
  constexpr double kOriginalContext = 8192, kLowFactor = 1, kHighFactor = 4;
  std::vector<float> factors;
  for (int i = 0; i < s.head_dim / 2; ++i) {
    const double wavelength = 2 * std::numbers::pi * std::pow(s.rope_freq_base, 2.0 * i / s.head_dim);
    double factor = 1;
    if (wavelength > kOriginalContext / kLowFactor) {
      factor = s.rope_factor;
    } else if (wavelength >= kOriginalContext / kHighFactor) {
      const double blend = (kOriginalContext / wavelength - kLowFactor) / (kHighFactor - kLowFactor);
      factor = 1 / ((1 - blend) / s.rope_factor + blend);
    }
    factors.push_back(static_cast<float>(factor));
  }
  return factors;
}

}  // namespace tandem::tools
