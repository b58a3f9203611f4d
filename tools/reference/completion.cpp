#include "tools/reference/completion.h"

#include <CLI/CLI.hpp>

#include "tools/options/arguments.h"
#include "tools/options/types.h"
#include "tools/reference/completion_shells.h"

namespace tandem::tools {

std::string completion_script(const CLI::App& root, const std::string& shell) {
  std::vector<DescribedCommand> commands;
  for (const CLI::App* command : commands_of(root)) commands.push_back(describe(*command));
  const auto write = one_of<decltype(&bash_completion)>(
      "shell", shell, {{"bash", bash_completion}, {"zsh", zsh_completion}, {"fish", fish_completion}});
  return write(describe(root), commands);
}

}  // namespace tandem::tools
