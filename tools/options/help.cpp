// Help pages: groups with headings, names on the left, wrapped text on the right, defaults in parentheses.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>

#include "base/terminal.h"
#include "base/text.h"
#include "tools/options/arguments.h"
#include "tools/options/positional.h"
#include "tools/options/types.h"

namespace tandem::tools {
namespace {

constexpr size_t kMaxWidth = 100, kMinWidth = 40;
constexpr char kNoBreak = '\x01';  // non-breaking space

// Breaks `text` at spaces so that no line passes `width`; a word longer than a line keeps one for itself.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find_first_of(" \n", start), text.size());
    const std::string word = text.substr(start, end - start);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    if (end < text.size() && text[end] == '\n') lines.emplace_back();
    start = end + 1;
  }
  for (std::string& line : lines) std::replace(line.begin(), line.end(), kNoBreak, ' ');
  return lines;
}

// Columns of a page, and where the text beside a name begins: on a narrow one, below the name.
struct PageLayout {
  size_t width, text_column;
  explicit PageLayout(size_t columns)
      : width(std::clamp(columns, kMinWidth, kMaxWidth)), text_column(width < 72 ? 8 : 34) {}
  size_t text_width() const { return width - text_column; }
};

// One entry: the name, and the text beside it, or below it if the name is long.
std::string entry(const PageLayout& layout, const std::string& name, const std::string& text) {
  std::string out = "  " + name;
  const auto lines = wrapped(text, layout.text_width());
  if (lines.front().empty()) return out + "\n";
  size_t column = out.size();
  if (column + 2 > layout.text_column) {
    out += '\n';
    column = 0;
  }
  for (const std::string& line : lines) {
    out += std::string(layout.text_column - column, ' ') + line + "\n";
    column = 0;
  }
  return out;
}

// "-ub, --ubatch-size N"
std::string option_names(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) {
    const std::string_view letters = multi_letter_short_form(name);
    if (!letters.empty()) names.insert(names.begin(), "-" + std::string(letters));
  }
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  std::string out = joined(names, ", ");
  const bool takes_value = option.get_type_size() != 0 && option.get_expected_max() != 0;
  if (takes_value && !option.get_type_name().empty()) {
    const std::string& type = option.get_type_name();
    out += option.get_expected_min() == 0 ? " [" + type + "]" : " " + type;
  }
  return out;
}

std::string option_text(const PageLayout& layout, const CLI::Option& option) {
  std::string text = option.get_description();
  std::string value = option.get_default_str();
  if (value.size() >= 2 && value.front() == '[' && value.back() == ']')
    value = value.substr(1, value.size() - 2);
  // a value that can be left out has the bare value here, and a flag says its default in words
  const bool show = !value.empty() && option.get_expected_min() > 0 && option.get_type_size() != 0;
  if (option.get_required()) text += " (required)";
  if (show && !option.get_required()) {
    const bool fits = value.size() + sizeof "(default: )" <= layout.text_width();
    text += std::string(" (default:") + (fits ? kNoBreak : ' ') + value + ")";
  }
  return text;
}

// The text for a positional argument: its type if that is descriptive, such as "IN.gguf [OUT.gguf] TYPE".
std::string positional_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.empty() || type == "TEXT" ? option.get_name(true) : type;
}

bool is_positional(const CLI::App& app, const CLI::Option& option) {
  const auto names = positional_options(app.get_name()).names;
  return std::any_of(names.begin(), names.end(),
                     [&option](std::string_view name) { return option.check_lname(std::string(name)); });
}

class HelpFormatter : public CLI::Formatter {
 public:
  explicit HelpFormatter(size_t columns) : layout_(columns) {}

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode) const override {
    std::string out;
    std::string title = app->get_description();  // begins a page, unlike the text beside a command's name
    if (!title.empty()) title[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(title[0])));
    for (const std::string& line : wrapped(title, layout_.width)) out += line + "\n";
    out += "\n" + usage(*app, name);
    out += positionals(*app) + commands(*app) + groups(*app);
    if (find_long(*app, "model")) {
      out += "\n";
      for (const std::string& line :
           wrapped("Long options can also be set in the environment (TANDEM_ARG_CTX_SIZE=4096) and in "
                   "~/.config/tandem/config.ini (ctx-size = 4096).",
                   layout_.width)) {
        out += line + "\n";
      }
    }
    if (!app->get_footer().empty()) out += "\n" + app->get_footer() + "\n";
    return wrapped_words(out, layout_.width);  // also usage, long names and the footer
  }

 private:
  static std::string usage(const CLI::App& app, const std::string& name) {
    std::string out = "Usage: " + name;
    const bool has_commands = !app.get_subcommands([](const CLI::App*) { return true; }).empty();
    if (has_commands) out += " COMMAND";
    out += positional_usage(app);
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional()) {
        const std::string argument = positional_name(*option);
        out += option->get_required() ? " " + argument : " [" + argument + "]";
      } else if (option->get_required() && !is_positional(app, *option)) {
        const bool has_short = !option->get_snames().empty();
        out += has_short ? " -" + option->get_snames().front() : " --" + option->get_lnames().front();
        out += " " + option->get_type_name();
      }
    }
    return out + " [options]\n";
  }

  std::string positionals(const CLI::App& app) const {
    std::string out;
    for (const CLI::Option* option : app.get_options()) {
      if (option->get_positional()) out += entry(layout_, positional_name(*option), option_text(layout_, *option));
    }
    return out.empty() ? out : "\nArguments:\n" + out;
  }

  std::string commands(const CLI::App& app) const {
    std::string out;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
      out += entry(layout_, command->get_name(), command->get_description());
    }
    return out.empty() ? out : "\nCommands:\n" + out;
  }

  // In the order added by the command, except that these two come last.
  std::string groups(const CLI::App& app) const {
    std::vector<std::string> names = app.get_groups();
    const auto rank = [](const std::string& name) {
      return name == kNoEffectGroup ? 1 : name == "Options" ? 2 : 0;
    };
    std::stable_sort(names.begin(), names.end(),
                     [&rank](const std::string& a, const std::string& b) { return rank(a) < rank(b); });
    std::string out;
    for (const std::string& name : names) {
      std::string entries;
      for (const CLI::Option* option : app.get_options()) {
        if (option->get_group() == name && option->nonpositional()) {
          entries += entry(layout_, option_names(*option), option_text(layout_, *option));
        }
      }
      if (!name.empty() && !entries.empty()) out += "\n" + name + ":\n" + entries;
    }
    return out;
  }

  PageLayout layout_;
};

}  // namespace

static std::string upper_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string positional_usage(const CLI::App& command) {
  const PositionalOptions options = positional_options(command.get_name());
  std::string out;
  for (const std::string_view name : options.names) {
    const CLI::Option* option = find_long(command, std::string(name));
    if (!option) continue;
    const std::string shown = upper_case(name) + (options.repeats ? "..." : "");
    out += option->get_required() || name == "model" ? " " + shown : " [" + shown + "]";
  }
  return out;
}

std::shared_ptr<CLI::FormatterBase> make_help_formatter() {
  const bool terminal = isatty(STDOUT_FILENO) == 1;
  return std::make_shared<HelpFormatter>(terminal ? terminal_columns(STDOUT_FILENO) : kMaxWidth);
}

}  // namespace tandem::tools
