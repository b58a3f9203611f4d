// Options like those of `tandem run`, of a command that does nothing, for the targets that read options.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tools/options/command_line.h"
#include "tools/options/offload.h"
#include "tools/options/options.h"

namespace tandem::fuzz {

class CommandOptions {
 public:
  CommandOptions() : app_(tools::make_app("fuzz", "tandem")) {
    app_->require_subcommand(1);
    for (const char* name : {"run", "chat"}) {
      CLI::App& command = tools::add_command(*app_, name, "runs a model");
      tools::add_model_options(command, options_);
      tools::add_context_options(command, options_.engine.context, options_.flash_attention);
      tools::add_rope_options(command, options_.engine.model.rope);
      tools::add_thread_options(command, options_.engine.devices);
      tools::add_offload_options(command, options_.engine, options_.explain);
      tools::add_sampling_options(command, sampling_);
      tools::add_text_options(command, text_);
      tools::add_log_options(command, options_.log);
      // They read other files, or devices.
      for (const char* other : {"--grammar-file", "--json-schema-file", "--list-devices"}) {
        tools::remove_option(command, other);
      }
    }
    tools::add_config_options(*app_);
  }

  CLI::App& app() { return *app_; }

 private:
  std::unique_ptr<CLI::App> app_;
  tools::CommandOptions options_;
  SamplerParams sampling_;
  tools::TextOptions text_;
};

}  // namespace tandem::fuzz
