// Completion for bash: one function with a table of options for each command.
#include "base/error.h"
#include "base/text.h"
#include "tools/reference/completion_shells.h"

namespace tandem::tools {
namespace {

constexpr const char* kStart = R"(# bash completion for tandem

# The files that match a pattern, and folders, to look for more in them.
_tandem_files() {
  local IFS=$'\n'
  compopt -o filenames 2>/dev/null
  COMPREPLY+=($(compgen -f -X "!$1" -- "$cur") $(compgen -d -- "$cur"))
}

_tandem() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}
  local command= options= takes= kind= words= arguments= word i n=0 skip=
  COMPREPLY=()
  # --name=value comes as three words
  if [[ $cur == = ]]; then cur=; elif [[ $prev == = ]]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${COMP_WORDS[i]} == -* ]] || { command=${COMP_WORDS[i]}; break; }
  done
  case $command in
)";

constexpr const char* kEnd = R"(    *) return ;;
  esac
  # which positional argument this is: neither options nor their values count
  for ((++i; i < COMP_CWORD; ++i)); do
    word=${COMP_WORDS[i]}
    if [[ -n $skip ]]; then skip=
    elif [[ $takes == *"|$word|"* ]]; then skip=1
    elif [[ $word != -* && $word != = ]]; then ((++n)); fi
  done
  if [[ -z $kind && $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "$cur"))
    return
  fi
  if [[ -z $kind ]]; then
    for word in $arguments; do
      kind=${word%%:*} words=${word#*:}
      words=${words//,/ }
      ((n-- > 0)) || break
    done
  fi
  case $kind in
    model) _tandem_files '*.gguf' ;;
    file) _tandem_files '*' ;;
    folder) compopt -o filenames 2>/dev/null; local IFS=$'\n'; COMPREPLY=($(compgen -d -- "$cur")); unset IFS ;;
  esac
  COMPREPLY+=($(compgen -W "$words" -- "$cur"))
}

complete -F _tandem tandem
)";

const char* kind_name(ValueKind kind) {
  switch (kind) {
    case ValueKind::none: return "";
    case ValueKind::words: return "words";
    case ValueKind::model: return "model";
    case ValueKind::file: return "file";
    case ValueKind::folder: return "folder";
    case ValueKind::other: return "other";
  }
  return "";
}

// "model: words:a,b": the positional arguments.
std::string arguments_of(const DescribedCommand& command) {
  std::string text;
  for (const DescribedOption& a : command.arguments) {
    text += (text.empty() ? "" : " ") + std::string(kind_name(a.kind)) + ":" + joined(a.words, ",");
  }
  return text;
}

std::string options_of(const DescribedCommand& command) {
  std::string names, takes = "|", cases;
  for (const DescribedOption& o : command.options) {
    names += (names.empty() ? "" : " ") + joined(o.names, " ");
    if (o.kind == ValueKind::none) continue;
    if (!o.optional_value) takes += joined(o.names, "|") + "|";
    if (o.optional_value && o.words.empty()) continue;
    cases += format("        {}) kind={} words='{}' ;;\n", joined(o.names, "|"), kind_name(o.kind),
                    joined(o.words, " "));
  }
  return format(
      "      options='{}'\n      takes='{}'\n      arguments='{}'\n      case $prev in\n{}      esac ;;\n",
      names, takes, arguments_of(command), cases.empty() ? "        *) ;;\n" : cases);
}

}  // namespace

std::string bash_completion(const DescribedCommand& program, const std::vector<DescribedCommand>& commands) {
  DescribedCommand before = program;
  DescribedOption names;
  names.kind = ValueKind::words;
  for (const DescribedCommand& command : commands) names.words.push_back(command.name);
  before.arguments = {names};
  std::string text = kStart;
  text += "    '')\n" + options_of(before);
  for (const DescribedCommand& command : commands)
    text += "    " + command.name + ")\n" + options_of(command);
  return text + kEnd;
}

}  // namespace tandem::tools
