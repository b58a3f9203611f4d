// tandem help, version and completion: what the program says about itself.
#include <CLI/CLI.hpp>
#include <memory>

#include "base/error.h"
#include "tools/build_info.h"
#include "tools/command.h"
#include "tools/options/arguments.h"
#include "tools/options/command_line.h"
#include "tools/options/options.h"
#include "tools/options/suggest.h"
#include "tools/output.h"
#include "tools/reference/completion.h"
#include "tools/reference/man_page.h"

namespace tandem::tools {
namespace {

void print(const std::string& text) {
  Output out;
  out.write(text.ends_with('\n') ? text : text + "\n");
  out.flush();
}

// App::help would show the page of the command that runs, which is "help".
std::string page(const CLI::App& command, const std::string& name) {
  return make_help_formatter()->make_help(&command, name, CLI::AppFormatMode::Normal);
}

std::string page_of(const CLI::App& root, const std::string& name) {
  if (name.empty()) return page(root, root.get_name());
  std::vector<std::string> known;
  for (const CLI::App* command : commands_of(root)) {
    known.push_back(command->get_name());
    if (command->get_name() == name) return page(*command, root.get_name() + " " + name);
  }
  throw_error(ErrorCode::usage, "unknown command '{}'{}", printable(name), did_you_mean(name, known));
}

}  // namespace

void add_help(CLI::App& app) {
  struct Options {
    std::string command;
    bool man = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App& command = add_command(app, "help", "show the options of a command");
  text(command, "command", o->command, "COMMAND", "the command; all are listed without one");
  flag(command, "--man", o->man, "print the manual page of all commands, for man");
  set_callback(command, [o, &app] { print(o->man ? man_page(app) : page_of(app, o->command)); });
}

void add_version(CLI::App& app) {
  app.add_subcommand("version", "print the version")->callback([] { print(version_text()); });
}

void add_completion(CLI::App& app) {
  const auto shell = std::make_shared<std::string>();
  CLI::App& command = add_command(app, "completion", "print a script that completes commands and options");
  text(command, "shell", *shell, "bash|zsh|fish", "the shell to write it for").required();
  set_footer(command,
             "For the current shell: source <(tandem completion bash)\nMake install installs all three.");
  set_callback(command, [shell, &app] { print(completion_script(app, *shell)); });
  // as llama.cpp's programs have it
  call_flag(app, "--completion-bash", "", [&app] { print_and_exit(completion_script(app, "bash")); })
      .trigger_on_parse()
      .group("");
}

}  // namespace tandem::tools
