// The families: each is defined in the file of its name and listed in architectures.cpp.
#pragma once

#include "model/architecture.h"

namespace tandem {

std::unique_ptr<Architecture> load_llama(const ModelSource& source);
std::unique_ptr<Architecture> load_mistral3(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen2(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen2moe(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3moe(const ModelSource& source);
std::unique_ptr<Architecture> load_gemma2(const ModelSource& source);
std::unique_ptr<Architecture> load_gemma3(const ModelSource& source);
std::unique_ptr<Architecture> load_phi3(const ModelSource& source);
std::unique_ptr<Architecture> load_granite(const ModelSource& source);
std::unique_ptr<Architecture> load_smollm3(const ModelSource& source);
std::unique_ptr<Architecture> load_olmo2(const ModelSource& source);
std::unique_ptr<Architecture> load_gpt_oss(const ModelSource& source);
std::unique_ptr<Architecture> load_glm4moe(const ModelSource& source);
std::unique_ptr<Architecture> load_minimax_m2(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3vl(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3vlmoe(const ModelSource& source);
std::unique_ptr<Architecture> load_seed_oss(const ModelSource& source);
std::unique_ptr<Architecture> load_ernie4_5_moe(const ModelSource& source);
std::unique_ptr<Architecture> load_hunyuan_moe(const ModelSource& source);
std::unique_ptr<Architecture> load_exaone_moe(const ModelSource& source);
std::unique_ptr<Architecture> load_bailingmoe2(const ModelSource& source);
std::unique_ptr<Architecture> load_deepseek2(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen3next(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen35(const ModelSource& source);
std::unique_ptr<Architecture> load_qwen35moe(const ModelSource& source);
std::unique_ptr<Architecture> load_granitehybrid(const ModelSource& source);
std::unique_ptr<Architecture> load_nemotron_h(const ModelSource& source);
std::unique_ptr<Architecture> load_nemotron_h_moe(const ModelSource& source);
std::unique_ptr<Architecture> load_lfm2(const ModelSource& source);
std::unique_ptr<Architecture> load_lfm2moe(const ModelSource& source);
std::unique_ptr<Architecture> load_gemma4(const ModelSource& source);

}  // namespace tandem
