// The configuration file: defaults for options, in sections for commands and for models.
//
//     # for every command that has these options
//     threads = 8
//     [chat]
//     system-prompt = You are brief.
//     [model *qwen3*]
//     temp = 0.6
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::tools {

struct ConfigEntry {
  std::string key, value;
  int line = 0;
};

struct ConfigSection {
  enum class Kind { general, command, model } kind = Kind::general;
  std::string name;  // of the command; what the model's name must match
  std::vector<ConfigEntry> entries;
};

struct ConfigFile {
  std::string path;
  std::vector<ConfigSection> sections;  // in the file's order
};

// $TANDEM_CONFIG, $XDG_CONFIG_HOME/tandem/config.ini or ~/.config/tandem/config.ini; "" for no file: the first is
// set and empty, or there is no file in the usual place.
std::string usual_config_path();

// Throws Error(io), and Error(bad_file) that names the line: a line that is no setting, an unknown section, a key
// that is no option of the section's command or, outside of one, of any command.
ConfigFile read_config(const std::string& path, const CLI::App& root);
ConfigFile parse_config(std::string_view text, const std::string& path, const CLI::App& root);

// Whether a section's name, which may have the wildcards * ? [], means this model: its path, the name of its
// file with or without .gguf, or its name on a model hub. Case does not matter.
bool matches_model(const std::string& pattern, const std::string& model);

}  // namespace tandem::tools
