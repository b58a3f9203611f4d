#include "tools/reference/man_page.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "base/error.h"
#include "tools/build_info.h"
#include "tools/options/arguments.h"
#include "tools/options/positional.h"
#include "tools/options/types.h"
#include "tools/reference/describe.h"

namespace tandem::tools {
namespace {

constexpr int kShared = 3;  // an option that so many commands have is explained once

// Text for roff: no escapes, no requests at the start of a line.
std::string roff(const std::string& text) {
  std::string out;
  bool line_starts = true;
  for (const char c : text) {
    if (line_starts && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_starts = c == '\n';
  }
  return out;
}

std::string man_quoted(const std::string& text) {
  std::string out = roff(text);
  for (size_t at = 0; (at = out.find('"', at)) != std::string::npos; at += 4) out.replace(at, 1, "\\(dq");
  return "\"" + out + "\"";
}

// A list of choices may be longer than a line: it breaks after any of them.
std::string choices(const std::string& text) {
  std::string out = roff(text);
  for (size_t at = 0; (at = out.find('|', at)) != std::string::npos; at += 3) out.insert(at + 1, "\\:");
  return out;
}

std::string names_of(const DescribedOption& o) {
  std::string text;
  for (const std::string& name : o.names) text += (text.empty() ? "\\fB" : ", \\fB") + roff(name) + "\\fR";
  if (o.placeholder.empty()) return text;
  const std::string value = "\\fI" + choices(o.placeholder) + "\\fR";
  return text + (o.optional_value ? " [" + value + "]" : " " + value);
}

std::string entry(const CLI::Option& option) {
  const DescribedOption o = describe(option);
  std::string text = ".TP\n" + names_of(o) + "\n" + roff(o.help);
  const std::string value = option.get_default_str();
  const bool shown = !value.empty() && o.kind != ValueKind::none && !o.optional_value && value != "\"\"";
  if (shown && !option.get_required()) text += " (default: " + roff(value) + ")";
  return text + "\n";
}

// Options are the same if they are called and explained alike.
std::string identity(const CLI::Option& option) {
  return option.get_name(false, true) + "\n" + option.get_description();
}

std::map<std::string, int> count_uses(const std::vector<CLI::App*>& commands) {
  std::map<std::string, int> uses;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) ++uses[identity(*option)];
  }
  return uses;
}

bool has_entry(const CLI::Option& option) {
  return option.nonpositional() && !option.get_group().empty() && option.get_group() != kNoEffectGroup;
}

std::string command_section(const CLI::App& command, const std::map<std::string, int>& uses) {
  const DescribedCommand described = describe(command);
  std::string text = ".SS tandem " + command.get_name();
  const std::string words = positional_usage(command);
  text += roff(words);
  if (words.empty()) {
    for (const DescribedOption& a : described.arguments) text += " " + roff(a.placeholder);
  }
  text += "\n" + roff(command.get_description()) + ".\n";
  for (const CLI::Option* option : command.get_options()) {
    if (has_entry(*option) && uses.at(identity(*option)) < kShared) text += entry(*option);
  }
  if (!command.get_footer().empty()) text += ".PP\n" + roff(command.get_footer()) + "\n";
  return text;
}

// Each option that several commands have, under the heading it has on their help pages.
std::string shared_section(const std::vector<CLI::App*>& commands, std::map<std::string, int> uses) {
  std::vector<std::string> groups;
  std::map<std::string, std::string> entries;
  for (const CLI::App* command : commands) {
    for (const CLI::Option* option : command->get_options()) {
      int& n = uses[identity(*option)];
      if (!has_entry(*option) || n < kShared) continue;
      n = 0;
      if (entries.find(option->get_group()) == entries.end()) groups.push_back(option->get_group());
      entries[option->get_group()] += entry(*option);
    }
  }
  std::string text;
  for (const std::string& group : groups) text += ".SS " + man_quoted(group) + "\n" + entries[group];
  return text;
}

constexpr const char* kFiles = R"(.SH CONFIGURATION FILE
.TP
\fI~/.config/tandem/config.ini\fR
Defaults for options, as \fIlong\-option = value\fR, one on a line.
Lines in the section \fB[COMMAND]\fR are for one command, those in \fB[model NAME]\fR for the models whose path,
file name or name on a model hub matches, where * and ? are wildcards.
The command line comes first, then the environment, the model's section, the command's section, and the lines before
any section.
.PP
.nf
threads = 8
[chat]
system\-prompt = You are brief.
[model *qwen3*]
temp = 0.6
.fi
.SH ENVIRONMENT
.TP
\fBTANDEM_ARG_\fR\fINAME\fR
Sets the option \fI\-\-name\fR: TANDEM_ARG_CTX_SIZE sets \-\-ctx\-size.
\fBLLAMA_ARG_\fR\fINAME\fR does where it is not set.
.TP
\fBTANDEM_CONFIG\fR
Another configuration file; empty: none.
.TP
\fBNO_COLOR\fR
No colors.
.SH EXIT STATUS
.TP
\fB0\fR
success
.TP
\fB1\fR
inspect \-\-diff: the files differ
.TP
\fB2\fR
invalid command line
.TP
\fB3\fR
invalid input file
.TP
\fB4\fR
out of memory
.TP
\fB5\fR
read or write error
.TP
\fB6\fR
the model computed NaN
.TP
\fB7\fR
constrained output was cut short
.TP
\fB70\fR
internal error
.TP
\fB130\fR
interrupted
)";

}  // namespace

std::string man_page(const CLI::App& root) {
  const auto commands = commands_of(root);
  const auto uses = count_uses(commands);
  const std::string version = version_text().substr(0, version_text().find('\n'));
  std::string text = ".TH TANDEM 1 \"\" " + man_quoted(version) + " \"User Commands\"\n";
  text += ".SH NAME\ntandem \\- run GGUF language models on a CPU, on a GPU, or on both\n";
  text += ".SH SYNOPSIS\n\\fBtandem\\fR \\fICOMMAND\\fR [\\fIoptions\\fR]\n";
  text += ".SH DESCRIPTION\nRuns a model file on the CPU, on NVIDIA GPUs, or on both at any split.\n";
  text += "\\fBtandem help\\fR \\fICOMMAND\\fR shows the options of one command.\n";
  for (const CLI::Option* option : root.get_options()) {
    if (has_entry(*option)) text += entry(*option);
  }
  text +=
      ".SH COMMANDS\nEach has the options named here, and those of the next part that its help page shows.\n";
  for (const CLI::App* command : commands) text += command_section(*command, uses);
  text += ".SH OPTIONS OF SEVERAL COMMANDS\n" + shared_section(commands, uses);
  return text + kFiles;
}

}  // namespace tandem::tools
