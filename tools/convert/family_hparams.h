// What the families write to a GGUF file's hyperparameters beyond those that all share, for the table of architectures.cpp.
// A function throws Error(bad_file) where config.json says what no reader of GGUF expects.
#pragma once

#include "tools/convert/architectures.h"

namespace tandem::tools::hparams {

// Shared by several families.

void head_sizes(const ModelConfig& c, HparamWriter& out);
void window(const ModelConfig& c, HparamWriter& out);
// Text has one position where pictures have three: the sections of rotations among them say nothing to it, but
// other readers ask for them.
void add_sections(const ModelConfig& c, HparamWriter& out);
// Requires a window in every layer but each `period`-th, which readers of GGUF assume.
void check_window_pattern(const ModelConfig& c, int64_t period);
void partial_rotation(const ModelConfig& c, HparamWriter& out);
// How experts are chosen; expert_gating_func: 1 is softmax, 2 sigmoid.
enum class Scoring { softmax = 1, sigmoid = 2 };
void mixture(const ModelConfig& c, HparamWriter& out, Scoring scoring);

// dense_hparams.cpp

void llama(const ModelConfig& c, HparamWriter& out);
void mistral3(const ModelConfig& c, HparamWriter& out);
void granite(const ModelConfig& c, HparamWriter& out);
void smollm3(const ModelConfig& c, HparamWriter& out);
void qwen(const ModelConfig& c, HparamWriter& out);
void qwen3_vl(const ModelConfig& c, HparamWriter& out);
void gemma2(const ModelConfig& c, HparamWriter& out);
void gemma3(const ModelConfig& c, HparamWriter& out);
void phi3(const ModelConfig& c, HparamWriter& out);
void olmo2(const ModelConfig& c, HparamWriter& out);
void olmo3(const ModelConfig& c, HparamWriter& out);
void seed_oss(const ModelConfig& c, HparamWriter& out);

// mixture_hparams.cpp

void qwen2_moe(const ModelConfig& c, HparamWriter& out);
void qwen3_moe(const ModelConfig& c, HparamWriter& out);
void qwen3_vl_moe(const ModelConfig& c, HparamWriter& out);
void gpt_oss(const ModelConfig& c, HparamWriter& out);
void glm4_moe(const ModelConfig& c, HparamWriter& out);
void minimax_m2(const ModelConfig& c, HparamWriter& out);
void ernie4_5_moe(const ModelConfig& c, HparamWriter& out);
void hunyuan_moe(const ModelConfig& c, HparamWriter& out);
void exaone_moe(const ModelConfig& c, HparamWriter& out);
void deepseek_v2(const ModelConfig& c, HparamWriter& out);
void deepseek_v3(const ModelConfig& c, HparamWriter& out);
void bailing_moe2(const ModelConfig& c, HparamWriter& out);

// recurrent_hparams.cpp

void qwen3_next(const ModelConfig& c, HparamWriter& out);
void qwen35(const ModelConfig& c, HparamWriter& out);
void qwen35_moe(const ModelConfig& c, HparamWriter& out);
void lfm2(const ModelConfig& c, HparamWriter& out);
void lfm2_moe(const ModelConfig& c, HparamWriter& out);
bool has_recurrent_layers(const JsonObject& config);
void granite_hybrid(const ModelConfig& c, HparamWriter& out);
void granite_without_mamba(const ModelConfig& c, HparamWriter& out);
bool is_granite_without_mamba(const JsonObject& config);
void nemotron_h(const ModelConfig& c, HparamWriter& out);
bool is_nemotron_dense(const JsonObject& config);
void nemotron_h_moe(const ModelConfig& c, HparamWriter& out);

}  // namespace tandem::tools::hparams
