// A command line in the words that CLI11 understands without doubt, with what the environment and the
// configuration file add to it.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem::tools {

// Where the value of an option comes from, if not from the command line.
struct Origin {
  std::vector<std::string> options;  // all its long names: "--gpu-layers", "--n-gpu-layers"
  std::string source;                // "TANDEM_ARG_N_GPU_LAYERS", or "config.ini:3"
  ErrorCode code;                    // of an error in this value
};

struct Arguments {
  std::vector<std::string> list;
  std::vector<Origin> origins;
};

// Throws Error(usage) for options and words that the command does not know, Error(bad_file) for mistakes in the
// configuration file.
Arguments rewrite_arguments(CLI::App& root, const std::vector<std::string>& arguments);

// The option with this long name, without dashes; null if there is none.
const CLI::Option* find_long(const CLI::App& app, const std::string& name);
bool is_flag(const CLI::Option& option);
// "true" or "false" for any usual word. Throws an error that starts with `source`.
std::string flag_value(const std::string& source, const std::string& value,
                       ErrorCode code = ErrorCode::usage);
// All long names of a command's options.
std::vector<std::string> long_names(const CLI::App& command);
std::vector<CLI::App*> commands_of(const CLI::App& root);

}  // namespace tandem::tools
