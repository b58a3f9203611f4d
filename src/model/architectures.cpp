#include <string>
#include <string_view>

#include "base/error.h"
#include "model/families.h"

namespace tandem {
namespace {

struct ArchitectureEntry {
  std::string_view name;  // general.architecture
  std::unique_ptr<Architecture> (*load)(const ModelSource& source);
};

// The families that this build knows.
constexpr ArchitectureEntry kArchitectures[] = {
    {"llama", load_llama},
    {"mistral3", load_mistral3},
    {"qwen2", load_qwen2},
    {"qwen2moe", load_qwen2moe},
    {"qwen3", load_qwen3},
    {"qwen3moe", load_qwen3moe},
    {"gemma2", load_gemma2},
    {"gemma3", load_gemma3},
    {"phi3", load_phi3},
    {"granite", load_granite},
    {"smollm3", load_smollm3},
    {"olmo2", load_olmo2},
    {"gpt-oss", load_gpt_oss},
    {"glm4moe", load_glm4moe},
    {"minimax-m2", load_minimax_m2},
    {"qwen3vl", load_qwen3vl},
    {"qwen3vlmoe", load_qwen3vlmoe},
    {"seed_oss", load_seed_oss},
    {"ernie4_5-moe", load_ernie4_5_moe},
    {"hunyuan-moe", load_hunyuan_moe},
    {"exaone-moe", load_exaone_moe},
    {"bailingmoe2", load_bailingmoe2},
    {"deepseek2", load_deepseek2},
    {"qwen3next", load_qwen3next},
    {"qwen35", load_qwen35},
    {"qwen35moe", load_qwen35moe},
    {"granitehybrid", load_granitehybrid},
    {"nemotron_h", load_nemotron_h},
    {"nemotron_h_moe", load_nemotron_h_moe},
    {"lfm2", load_lfm2},
    {"lfm2moe", load_lfm2moe},
    {"gemma4", load_gemma4},
};

}  // namespace

std::unique_ptr<Architecture> load_architecture(const ModelSource& source) {
  const auto name = source.file.metadata().get<std::string>("general.architecture");
  std::string known;
  for (const ArchitectureEntry& entry : kArchitectures) {
    if (entry.name == name) return entry.load(source);
    known += (known.empty() ? "" : ", ") + std::string(entry.name);
  }
  source.file.metadata().fail("general.architecture", printable(name), "one of: " + known);
}

}  // namespace tandem
