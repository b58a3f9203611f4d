#include "tools/hub/model_path.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "plan/footprint.h"
#include "tools/hub/header_model.h"
#include "tools/hub/pull.h"
#include "tools/options/command_line.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

// What is meant, and what it takes to get it.
struct Target {
  std::string path;  // a file on this machine; or
  std::string url;   // a file anywhere; or
  ModelName name;    // a model on the hub
  std::string file;  // of that model's repository
  HubSettings settings;
};

HubSettings settings_of(const HubOptions& hub) {
  HubSettings settings = hub_settings();
  if (!hub.hf_token.empty()) settings.token = checked_token("--hf-token", hub.hf_token);
  if (hub.offline) {
    settings.offline = true;
    settings.offline_why = "--offline";
  }
  return settings;
}

Target url_target(const std::string& url, const HubOptions& hub) {
  Target target{.settings = settings_of(hub)};
  if (const auto file = parse_hub_file_url(target.settings, url)) {
    target.name.repo = file->repo;
    target.file = file->file;
  } else {
    target.url = url;
  }
  return target;
}

Target hub_target(const ModelName& name, const HubOptions& hub) {
  return {.name = name, .file = hub.hf_file, .settings = settings_of(hub)};
}

Target target_of(const std::string& model, const HubOptions& hub) {
  check_one_model(model, hub);
  if (!hub.hf_repo.empty()) return hub_target(require_model_name("--hf-repo", hub.hf_repo), hub);
  if (!hub.url.empty()) return url_target(hub.url, hub);
  if (means_hub_model(model)) return hub_target(*parse_model_name(model), hub);
  if (model.starts_with("https://") || model.starts_with("http://")) return url_target(model, hub);
  if (!hub.hf_file.empty())
    throw Error(ErrorCode::usage, "--hf-file needs a repository: give one with -hf USER/REPO");
  return {.path = model};
}

}  // namespace

void check_one_model(const std::string& model, const HubOptions& hub) {
  const std::pair<const char*, bool> given[] = {
      {"--model", !model.empty()}, {"--hf-repo", !hub.hf_repo.empty()}, {"--model-url", !hub.url.empty()}};
  const char* first = nullptr;
  for (const auto& [option, is_given] : given) {
    if (!is_given) continue;
    if (first != nullptr) {
      throw_error(ErrorCode::usage, "{} and {} both name a model, needed one of them", first, option);
    }
    first = option;
  }
  if (first == nullptr) {
    throw Error(ErrorCode::usage,
                "no model is given: name its file after the command or with -m, or a model on the hub with "
                "-hf USER/REPO");
  }
}

void add_hub_options(CLI::App& app, HubOptions& o, const char* group) {
  text(app, "--hf-repo", o.hf_repo, "USER/REPO[:QUANT]",
       "a model on the Hugging Face hub, downloaded when it is first used; QUANT is a type such as Q8_0 "
       "(default: "
       "Q4_K_M)")
      .group(group);
  text(app, "--hf-file", o.hf_file, "FILE", "with -hf: this file of the repository").group(group);
  text(app, "--hf-token", o.hf_token, "TOKEN",
       "access token for the hub (default: $HF_TOKEN, or the file that the hub's client keeps)")
      .group(group);
  text(app, "--model-url", o.url, "URL", "a GGUF file on the web, downloaded when it is first used")
      .group(group);
  flag(app, "--offline", o.offline, "never ask the network: use what was downloaded before").group(group);
}

std::string model_path(const std::string& model, const HubOptions& hub) {
  const Target target = target_of(model, hub);
  if (!target.path.empty()) return target.path;
  install_interrupt_handler();
  HttpClient http(target.settings.timeouts);
  if (!target.url.empty()) return pull_url(http, target.settings, target.url);
  const FoundModel found = find_model(http, target.settings, target.name, target.file);
  return pull_model(http, target.settings, found);
}

ModelHeader model_header(const std::string& model, const HubOptions& hub) {
  const Target target = target_of(model, hub);
  if (!target.path.empty()) return {target.path, target.path, nullptr};
  install_interrupt_handler();
  HttpClient http(target.settings.timeouts);
  if (!target.url.empty()) {
    const std::string path = pull_url(http, target.settings, target.url);
    return {path, path, nullptr};
  }
  const FoundModel found = find_model(http, target.settings, target.name, target.file);
  if (is_downloaded(target.settings, found)) {
    return {pull_model(http, target.settings, found), found.name(), nullptr};
  }
  auto temporary = std::make_shared<HeaderModel>(http, target.settings, found);
  log_info("{}: read only the header ({}); the whole download would be {}", found.name(),
           size_text(temporary->n_read_bytes()), size_text(found.model.n_bytes()));
  return {temporary->path(), found.name(), temporary};
}

}  // namespace tandem::tools
