// Hugging Face model folders for tests, made from tests/golden/families/NAME.json, where the weights are a
// function of their names. A test may change them before writing.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/ops.h"

namespace tandem::test {

struct HfTensor {
  std::string dtype;           // "BF16", "U8", ...
  std::vector<int64_t> shape;  // outermost first
  std::string bytes;
};

struct HfFolder {
  nlohmann::json config;
  std::map<std::string, HfTensor> tensors;
  nlohmann::json tokenizer;         // tokenizer.json; none: no such file
  nlohmann::json tokenizer_config;  // the same
  nlohmann::json generation_config;
  std::map<std::string, std::string> files;  // additional files, or replacements of the above

  // Makes the folder with config.json, model.safetensors and the tokenizer.
  void write(const std::string& folder) const;
  // The same with the tensors in `n_shards` files and their index.
  void write_sharded(const std::string& folder, size_t n_shards) const;
};

// One file of tests/golden/families, made by scripts/reference_logits.py.
struct Family {
  nlohmann::json json;
  std::string name() const { return json["name"]; }
  std::vector<int32_t> ids() const { return json["ids"]; }
  // The context size to use: transformers chooses between LongRoPE's two sets of factors by the number of
  // tokens, tandem by the context size. 0: the model's.
  int64_t n_ctx() const {
    const int64_t n_orig = json["config"].value("original_max_position_embeddings", int64_t{0});
    return n_orig >= static_cast<int64_t>(json["ids"].size()) ? n_orig : 0;
  }
  // Of a token's experts, those that the reference has let join one layer later.
  int64_t n_deferred() const { return json.value("n_deferred", int64_t{0}); }
};

const std::vector<std::string>& family_names();
// Families with latent attention are tested in both of its forms, and so also have the name NAME_expanded here.
const std::vector<std::string>& family_names_and_forms();
LatentForm form_of(const std::string& name);  // expanded for NAME_expanded, otherwise the cheaper one
Family load_family(const std::string& name);  // NAME or NAME_expanded
// Its model, with a small byte-level tokenizer.
HfFolder family_folder(const Family& family);

// Element `index` of a tensor: base + scale * (the top `bits` bits of splitmix64(fnv1a(name) + index),
// signed).
double family_value(const std::string& name, uint64_t index, double base, double scale, int bits);

// A safetensors file of these tensors.
std::string safetensors_bytes(const std::map<std::string, HfTensor>& tensors);

// A byte-level BPE tokenizer of at most n_tokens: <unk> <s> </s>, printable ASCII, and a few merges.
nlohmann::json small_tokenizer(int64_t n_tokens);

}  // namespace tandem::test
