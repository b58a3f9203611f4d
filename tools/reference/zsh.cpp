// Completion for zsh, by its function _arguments.
#include "tools/reference/completion_shells.h"

namespace tandem::tools {
namespace {

// Inside '...', where `special` characters need a backslash.
std::string zsh_quoted(const std::string& text, const std::string& special) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      if (special.find(c) != std::string::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

std::string action(const DescribedOption& o) {
  std::string words;
  for (const std::string& word : o.words) words += (words.empty() ? "" : " ") + word;
  switch (o.kind) {
    case ValueKind::none: return "";
    case ValueKind::words: return "(" + words + ")";
    case ValueKind::model:
      return words.empty() ? "_files -g \"*.gguf(-.)\"" : "{_files -g \"*.gguf(-.)\"; compadd " + words + "}";
    case ValueKind::file: return "_files";
    case ValueKind::folder: return "_files -/";
    case ValueKind::other: return " ";
  }
  return "";
}

std::string message(const DescribedOption& o) {
  return zsh_quoted(o.placeholder.empty() ? "argument" : o.placeholder, "\\:[]");
}

std::string option_lines(const DescribedOption& o) {
  std::string text;
  for (const std::string& name : o.names) {
    text += "        '*" + name + "[" + zsh_quoted(o.help, "\\:[]") + "]";
    if (o.kind != ValueKind::none)
      text += std::string(o.optional_value ? "::" : ":") + message(o) + ":" + action(o);
    text += "' \\\n";
  }
  return text;
}

std::string arguments_call(const DescribedCommand& command) {
  std::string text = "      _arguments \\\n";
  for (const DescribedOption& o : command.options) text += option_lines(o);
  for (size_t i = 0; i < command.arguments.size(); ++i) {
    const bool last = i + 1 == command.arguments.size();
    text += std::string("        '") + (last ? "*" : std::to_string(i + 1)) + ":" +
            message(command.arguments[i]) + ":" + action(command.arguments[i]) + "' \\\n";
  }
  return text + "        && return 0 ;;\n";
}

}  // namespace

std::string zsh_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands) {
  std::string text = "#compdef tandem\n\n_tandem() {\n  local curcontext=$curcontext state line\n";
  text += "  local -a commands\n  commands=(\n";
  for (const DescribedCommand& c : commands) text += "    '" + c.name + ":" + zsh_quoted(c.help, "\\:") + "'\n";
  text += "  )\n  _arguments -C \\\n";
  for (const DescribedOption& o : program.options) text += option_lines(o);
  text += "        '1:command:->command' '*::argument:->argument' && return 0\n";
  text +=
      "  if [[ $state == command ]]; then\n    _describe -t commands command commands\n    return\n  fi\n";
  text += "  case $line[1] in\n";
  for (const DescribedCommand& c : commands) text += "    " + c.name + ")\n" + arguments_call(c);
  text += "  esac\n  return 1\n}\n\n";
  // Sourced: register the function. Found in $fpath: the file is the function, which calls itself.
  return text +
         "if [[ $funcstack[1] == _tandem ]]; then\n  _tandem \"$@\"\nelse\n  compdef _tandem tandem\nfi\n";
}

}  // namespace tandem::tools
