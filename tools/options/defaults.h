// What the environment and the configuration file say about options that are not on the command line.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "tools/options/config.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem::tools {

// --config and --no-config; by default the file in the usual place.
struct ConfigChoice {
  bool none = false;
  std::string path;
};

struct Default {
  const CLI::Option* option;
  std::string name, value;  // a long name of the option, without dashes
  std::string source;       // the variable, or FILE:LINE
  ErrorCode error_code;     // of an error in the value
};

class Defaults {
 public:
  // Reads the environment, and the configuration file if the program has the option --config. Throws what
  // read_config throws, and Error(usage) for a flag whose variable is neither on nor off.
  Defaults(const CLI::App& root, const CLI::App& command, const ConfigChoice& config);

  // Whether any of them names a model.
  bool has_model() const;

  // Those to use, where these options are on the command line: the environment comes before the file, there the
  // sections of the model before that of the command, and last what is in no section. Of options that exclude
  // each other, only those from one place are used. `models`: the models that the command line names.
  std::vector<Default> choose(std::set<const CLI::Option*> given, std::vector<std::string> models) const;

 private:
  std::vector<Default> of_section(const ConfigSection& section) const;

  const CLI::App& command_;
  std::vector<Default> environment_;
  ConfigFile file_;
};

}  // namespace tandem::tools
