// Completion for fish: a `complete` line for each option of each command.
#include "tools/reference/completion_shells.h"

namespace tandem::tools {
namespace {

std::string fish_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

std::string values(const DescribedOption& o) {
  std::string words;
  for (const std::string& word : o.words) words += (words.empty() ? "" : " ") + word;
  switch (o.kind) {
    case ValueKind::none: return "";
    case ValueKind::words: return std::string(o.optional_value ? " -a " : " -x -a ") + fish_quoted(words);
    case ValueKind::model: return " -k -x -a " + fish_quoted("(__fish_complete_suffix .gguf) " + words);
    case ValueKind::file: return " -r -F";
    case ValueKind::folder: return " -x -a '(__fish_complete_directories)'";
    case ValueKind::other: return o.optional_value ? "" : " -x";
  }
  return "";
}

std::string line(const std::string& condition, const DescribedOption& o) {
  std::string text = "complete -c tandem -n " + fish_quoted(condition);
  for (const std::string& name : o.names) {
    const bool is_long = name.rfind("--", 0) == 0;
    text += is_long ? " -l " + name.substr(2) : (name.size() == 2 ? " -s " : " -o ") + name.substr(1);
  }
  return text + values(o) + " -d " + fish_quoted(o.help) + "\n";
}

}  // namespace

std::string fish_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands) {
  std::string text = "# fish completion for tandem\n\ncomplete -c tandem -f\n";
  for (const DescribedOption& o : program.options) text += line("__fish_use_subcommand", o);
  for (const DescribedCommand& c : commands) {
    text += "complete -c tandem -n __fish_use_subcommand -a " + c.name + " -d " + fish_quoted(c.help) + "\n";
  }
  for (const DescribedCommand& c : commands) {
    const std::string condition = "__fish_seen_subcommand_from " + c.name;
    text += "\n";
    for (const DescribedOption& o : c.options) text += line(condition, o);
    for (const DescribedOption& a : c.arguments) {
      if (a.kind == ValueKind::other) continue;
      const std::string value = values(a);
      if (!value.empty()) text += "complete -c tandem -n " + fish_quoted(condition) + value + "\n";
    }
  }
  return text;
}

}  // namespace tandem::tools
