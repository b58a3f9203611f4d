// tandem pull: downloads a model, so that other commands find it on this machine.
#include <memory>

#include "base/log.h"
#include "tools/command.h"
#include "tools/hub/model_name.h"
#include "tools/hub/model_path.h"
#include "tools/options/command_line.h"
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
  CLI::App& command = add_command(app, "pull", "download a model from the Hugging Face hub");
  const auto o = std::make_shared<PullOptions>();
  text(command, "name", o->name, "USER/REPO[:QUANT]", "a model on the hub, or the URL of a GGUF file");
  add_hub_options(command, o->hub);
  add_log_options(command, o->log);
  set_footer(
      command,
      "Prints the path of the model. An interrupted download goes on where it stopped. Models are kept in "
      "the "
      "hub\n"
      "client's own cache (~/.cache/huggingface/hub, $HF_HOME, $HF_HUB_CACHE), which other programs share.");
  set_callback(command, [o] { pull(*o); });
}

}  // namespace tandem::tools
