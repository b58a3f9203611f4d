// The table of model classes that convert supports: their tensors, the tensors' names in GGUF, and their
// hyperparameters. To add an architecture, add an entry. Pure functions; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/metadata.h"
#include "tools/convert/model_config.h"
#include "tools/convert/tensor_mapping.h"

namespace tandem::tools {

// Writes "ARCH.key" values and extra tensors.
class HparamWriter {
 public:
  HparamWriter(std::string_view architecture, Metadata& metadata, std::vector<TensorMapping>& extra)
      : architecture_(architecture), metadata_(metadata), extra_(extra) {}
  void integer(std::string_view key, int64_t value) { set(key, Value(static_cast<uint32_t>(value))); }
  void number(std::string_view key, double value) { set(key, Value(static_cast<float>(value))); }
  void text(std::string_view key, const std::string& value) { set(key, Value(value)); }
  void integers(std::string_view key, const std::vector<int32_t>& values) { set(key, Value(values)); }
  void flag(std::string_view key, bool value) { set(key, Value(value)); }
  void flags(std::string_view key, const std::vector<bool>& values) { set(key, Value(values)); }
  // Adds a vector of floats computed from config.json.
  void tensor(const std::string& name, std::vector<float> values);

 private:
  void set(std::string_view key, Value value) {
    metadata_.set(std::string(architecture_) + "." + std::string(key), std::move(value));
  }
  std::string_view architecture_;
  Metadata& metadata_;
  std::vector<TensorMapping>& extra_;
};

struct ConvertArchitecture {
  std::string_view classes;  // of config.json, separated by spaces
  std::string_view name;     // general.architecture
  ConfigDefaults defaults;
  std::vector<TensorRule> rules;
  void (*add_hparams)(const ModelConfig& config, HparamWriter& out);  // beyond those all share
  bool (*fits)(const JsonObject& config) = nullptr;                   // of entries with the same classes
};

// Throws Error(bad_file) with the supported classes for an unknown one.
const ConvertArchitecture& find_architecture(const JsonObject& config);
std::span<const ConvertArchitecture> convert_architectures();

// Adds all hyperparameters, and tensors derived from them.
void add_hparams(const ConvertArchitecture& architecture, const ModelConfig& config, Metadata& metadata,
                 std::vector<TensorMapping>& extra);

// Adds rope.freq_base and its scaling (rope_hparams.cpp).
void add_rope(const ModelConfig& config, HparamWriter& out);
// The hyperparameters of Gemma 4 (gemma4.cpp).
void add_gemma4(const ModelConfig& config, HparamWriter& out);
// Adds rope_factors_long and _short, Phi-3's scaling.
void add_longrope(const ModelConfig& config, HparamWriter& out);

}  // namespace tandem::tools
