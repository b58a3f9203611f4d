// Where a command's model comes from: a file, the hub or a URL; and how it gets to a path that can be opened. Every
// command that takes a model goes through here.
#pragma once

#include <memory>
#include <string>

namespace CLI {
class App;
}

namespace tandem::tools {

class HeaderModel;

// What the options say besides -m.
struct HubOptions {
  std::string hf_repo;   // -hf USER/REPO[:QUANT]
  std::string hf_file;   // -hff
  std::string hf_token;  // -hft
  std::string url;       // -mu
  bool offline = false;  // --offline

  bool empty() const { return hf_repo.empty() && url.empty(); }
};

void add_hub_options(CLI::App& app, HubOptions& hub, const char* group = "Model");

// Throws Error(usage) if no model is named, or more than one.
void check_one_model(const std::string& model, const HubOptions& hub);

// The path of the model: `model` itself if it is a file, else what it or `hub` names, downloaded if it is not on this
// machine. Throws Error(usage) if nothing or too much is named, else what find_model and pull_model throw.
std::string model_path(const std::string& model, const HubOptions& hub);

// The same for a command that reads no weights: of a model on the hub that is not on this machine only the header is
// downloaded.
struct ModelHeader {
  std::string path;                        // to open; gone with `temporary`
  std::string name;                        // for people
  std::shared_ptr<HeaderModel> temporary;  // empty: the whole file is there
};
ModelHeader model_header(const std::string& model, const HubOptions& hub);

}  // namespace tandem::tools
