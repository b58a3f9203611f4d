// What completion scripts and the manual page need to know about an option.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem::tools {

// What can follow an option.
enum class ValueKind { none, words, model, file, folder, other };

struct DescribedOption {
  std::vector<std::string> names;  // as typed: "-c", "--ctx-size"
  std::string help;                // one line
  std::string placeholder;         // "N"; empty: a flag
  ValueKind kind = ValueKind::none;
  bool optional_value = false;
  std::vector<std::string> words;  // the values to choose from, if kind is words
};

struct DescribedCommand {
  std::string name, help;
  std::vector<DescribedOption> options;
  // What its positional arguments are, in order; the last repeats.
  std::vector<DescribedOption> arguments;
};

DescribedOption describe(const CLI::Option& option);
DescribedCommand describe(const CLI::App& command);

}  // namespace tandem::tools
