// First inputs of the fuzz targets, for the program fuzz_seeds: one function for each target that has some.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tandem::fuzz {

// The folder of one target's inputs.
class SeedFolder {
 public:
  explicit SeedFolder(std::filesystem::path path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
  }
  void add(std::string_view bytes) { add("seed" + std::to_string(n_++), bytes); }
  void add(const std::string& name, std::string_view bytes) {
    std::ofstream(path_ / name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

 private:
  std::filesystem::path path_;
  int n_ = 0;
};

void seed_base_logits(SeedFolder& folder);
void seed_batch(SeedFolder& folder);
void seed_config(SeedFolder& folder);
void seed_gguf(SeedFolder& folder);
void seed_grammar(SeedFolder& folder);
void seed_hf_folder(SeedFolder& folder);
void seed_imatrix(SeedFolder& folder);
void seed_jinja(SeedFolder& folder);
void seed_kernels(SeedFolder& folder);
void seed_kv_block(SeedFolder& folder);
void seed_messages(SeedFolder& folder);
void seed_options(SeedFolder& folder);
void seed_recipe(SeedFolder& folder);
void seed_regex(SeedFolder& folder);
void seed_safetensors(SeedFolder& folder);
void seed_schema(SeedFolder& folder);
void seed_sentencepiece(SeedFolder& folder);
void seed_session(SeedFolder& folder);
void seed_tokenizer(SeedFolder& folder);
void seed_tokenizer_json(SeedFolder& folder);

}  // namespace tandem::fuzz
