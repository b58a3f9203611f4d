// tandem pull: downloads a model, so that other commands find it on this machine.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/log.h"
#include "tools/command.h"
#include "tools/hub/model_name.h"
#include "tools/hub/model_path.h"
#include "tools/options/types.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

struct PullOptions {
  std::string name;
  HubOptions hub;
  LogOptions log;
};

void pull(PullOptions& o) {
  apply_log_options(o.log);
  if (!o.name.empty()) {
    const bool is_url = o.name.starts_with("https://") || o.name.starts_with("http://");
    std::string& target = is_url && !parse_model_name(o.name) ? o.hub.url : o.hub.hf_repo;
    if (!target.empty())
      throw_error(ErrorCode::usage, "'{}' and an option both name a model", printable(o.name));
    if (&target == &o.hub.hf_repo) require_model_name("pull", o.name);
    target = o.name;
  }
  const std::string path = model_path("", o.hub);
  Output out;
  out.write(path + "\n");
  out.flush();
}

}  // namespace

void add_pull(CLI::App& app) {
  CLI::App* command = app.add_subcommand("pull", "download a model from the Hugging Face hub");
  const auto o = std::make_shared<PullOptions>();
  command->add_option("name", o->name, "a model on the hub, or the URL of a GGUF file")
      ->type_name("USER/REPO[:QUANT]");
  add_hub_options(*command, o->hub);
  add_log_options(*command, o->log);
  command->footer(
      "Prints the path of the model. An interrupted download goes on where it stopped. Models are kept in "
      "the "
      "hub\n"
      "client's own cache (~/.cache/huggingface/hub, $HF_HOME, $HF_HUB_CACHE), which other programs share.");
  command->callback([o] { pull(*o); });
}

}  // namespace tandem::tools
