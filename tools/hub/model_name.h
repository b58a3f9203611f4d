// USER/REPO[:QUANT]: the name of a model on the hub.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tandem::tools {

struct ModelName {
  std::string repo;   // "USER/REPO"
  std::string quant;  // as asked for; empty: the usual one
  std::string text() const { return quant.empty() ? repo : repo + ":" + quant; }
};

// Also takes what people paste: "hf.co/USER/REPO", "hf://USER/REPO", "https://huggingface.co/USER/REPO".
// nullopt if it is no such name.
std::optional<ModelName> parse_model_name(std::string_view text);
// Throws Error(usage) that starts with `option`.
ModelName require_model_name(const std::string& option, std::string_view text);

// Whether an argument that says which file to open can only be meant as a name on the hub: no such file exists, nor the
// folder that it would be in, and it does not end as a file does.
bool means_hub_model(const std::string& text);

}  // namespace tandem::tools
