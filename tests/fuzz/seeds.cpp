// Writes the first inputs of the fuzz targets: fuzz_seeds FOLDER makes FOLDER/NAME for each target that has some.
#include "fuzz/seeds.h"

#include <cstdio>
#include <utility>

int main(int n_arguments, char** arguments) {
  using namespace tandem::fuzz;
  if (n_arguments != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", arguments[0]);
    return 2;
  }
  constexpr std::pair<const char*, void (*)(SeedFolder&)> kSeeds[] = {
      {"base_logits", seed_base_logits},
      {"batch", seed_batch},
      {"config", seed_config},
      {"gguf", seed_gguf},
      {"grammar", seed_grammar},
      {"hf_folder", seed_hf_folder},
      {"imatrix", seed_imatrix},
      {"jinja", seed_jinja},
      {"kernels", seed_kernels},
      {"kv_block", seed_kv_block},
      {"messages", seed_messages},
      {"options", seed_options},
      {"recipe", seed_recipe},
      {"regex", seed_regex},
      {"safetensors", seed_safetensors},
      {"schema", seed_schema},
      {"sentencepiece", seed_sentencepiece},
      {"session", seed_session},
      {"tokenizer", seed_tokenizer},
      {"tokenizer_json", seed_tokenizer_json},
  };
  for (const auto& [name, write] : kSeeds) {
    SeedFolder folder(std::filesystem::path(arguments[1]) / name);
    write(folder);
  }
  return 0;
}
