// From arguments to a parsed app. CLI11 reads "-ub" as "-u b", so arguments are put into its terms first; the
// environment is added as if it had been typed.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "tools/options/options.h"
#include "tools/options/setting_flags.h"

namespace tandem::tools {
namespace {

struct ShortForm {
  std::string_view letters;
  std::string_view long_name;
};

// Every short form of more than one letter, without its dash.
constexpr ShortForm kShortForms[] = {
    {"ub", "ubatch-size"},
    {"tb", "threads-batch"},
    {"ctk", "cache-type-k"},
    {"ctv", "cache-type-v"},
    {"fa", "flash-attn"},
    {"co", "color"},
    {"st", "single-turn"},
    {"no-cnv", "no-conversation"},
    {"pg", "prompt-gen"},
    {"oe", "output-err"},
    {"mmp", "mmap"},
    {"ngl", "n-gpu-layers"},
    {"nkvo", "no-kv-offload"},
    {"ot", "override-tensor"},
    {"cmoe", "cpu-moe"},
    {"ncmoe", "n-cpu-moe"},
    {"sm", "split-mode"},
    {"ts", "tensor-split"},
    {"mg", "main-gpu"},
    {"dev", "device"},
    {"ofreq", "output-frequency"},
    {"jf", "json-schema-file"},
    {"sys", "system-prompt"},
    {"sysf", "system-prompt-file"},
    {"np", "parallel"},
    {"hf", "hf-repo"},
    {"hfr", "hf-repo"},
    {"hff", "hf-file"},
    {"hft", "hf-token"},
    {"mu", "model-url"},
};

const CLI::Option* find_long(const CLI::App& app, std::string_view name) {
  const auto found =
      app.get_options([name](const CLI::Option* o) { return o->check_lname(std::string(name)); });
  return found.empty() ? nullptr : found.front();
}

const CLI::Option* find_short(const CLI::App& app, char letter) {
  const auto found = app.get_options([letter](const CLI::Option* o) { return o->check_sname({letter}); });
  return found.empty() ? nullptr : found.front();
}

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0 || option.get_type_size() == 0;
}
bool needs_value(const CLI::Option& option) {
  return !is_flag(option) && option.get_items_expected_min() > 0;
}

// TANDEM_ARG_CTX_SIZE for ctx-size.
std::string environment_name(std::string_view long_name) {
  std::string name = "TANDEM_ARG_";
  for (const char c : long_name) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

struct FromEnvironment {
  std::string variable;
  std::string option;  // "--ctx-size"
};

class Rewriter {
 public:
  explicit Rewriter(CLI::App& root) : app_(&root) {}

  void rewrite(const std::vector<std::string>& arguments) {
    for (next_ = arguments.begin(), end_ = arguments.end(); next_ != end_;) {
      const std::string& argument = *next_++;
      if (argument == "--") {
        out.push_back(argument);
        out.insert(out.end(), next_, end_);
        break;
      }
      if (argument.rfind("--", 0) == 0) {
        long_option(argument);
      } else if (argument.size() > 1 && argument[0] == '-') {
        short_option(argument);
      } else {
        word(argument);
      }
    }
    add_environment();
  }

  std::vector<std::string> out;
  std::vector<FromEnvironment> from_environment;

 private:
  void word(const std::string& argument) {
    const auto commands = app_->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty()) {
      out.push_back(argument);
      return;
    }
    std::string known;
    for (CLI::App* command : commands) {
      if (command->check_name(argument)) {
        app_ = command;
        out.push_back(argument);
        options_start_ = out.size();
        return;
      }
      known += (known.empty() ? "" : ", ") + command->get_name();
    }
    throw_error(ErrorCode::usage, "unknown command '{}'; the commands are {}", printable(argument), known);
  }

  void long_option(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    const CLI::Option* option = find_long(*app_, name);
    if (!option) unknown(argument.substr(0, equals));
    const bool has_value = equals != std::string::npos;
    emit(*option, "--" + name, has_value, has_value ? argument.substr(equals + 1) : "");
  }

  void short_option(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string letters = argument.substr(1, equals == std::string::npos ? equals : equals - 1);
    const bool has_value = equals != std::string::npos;
    const std::string value = has_value ? argument.substr(equals + 1) : "";
    if (letters.size() > 1) {
      for (const std::string_view name : {long_name_of(letters), std::string_view(letters)}) {
        const CLI::Option* option = name.empty() ? nullptr : find_long(*app_, name);
        // "-temp" is not a way to write "--temp": only names that are short are taken as short forms
        if (!option || (name == letters && letters.size() > 3)) continue;
        return emit(*option, "--" + std::string(name), has_value, value);
      }
    }
    const CLI::Option* option = letters.empty() ? nullptr : find_short(*app_, letters[0]);
    if (option && letters.size() == 1) return emit(*option, "-" + letters, has_value, value);
    const bool attached =
        letters.size() > 1 && std::string("0123456789-+.").find(letters[1]) != std::string::npos;
    if (option && attached && !is_flag(*option)) {
      return emit(*option, argument.substr(0, 2), true, argument.substr(2));
    }
    unknown(argument.substr(0, equals));
  }

  // Writes the option in the form that CLI11 reads without doubt. What follows an option that needs a value
  // is that value, whatever it looks like.
  void emit(const CLI::Option& option, const std::string& name, bool has_value, const std::string& value) {
    seen_.insert(&option);
    const std::string long_form = option.get_lnames().empty() ? name : "--" + option.get_lnames().front();
    if (has_value && !needs_value(option)) {
      out.push_back((name.size() == 2 ? long_form : name) + "=" + value);
      return;
    }
    out.push_back(name);
    if (!needs_value(option)) return;
    if (!has_value && next_ == end_) {
      throw_error(ErrorCode::usage, "{} needs a value", name);
    }
    out.push_back(has_value ? value : *next_++);
  }

  [[noreturn]] void unknown(const std::string& name) const {
    throw_error(ErrorCode::usage, "unknown option '{}'", printable(name));
  }

  void add_environment() {
    if (options_start_ == 0 || seen_.count(app_->get_help_ptr())) return;
    std::vector<std::string> added;
    for (const CLI::Option* option : app_->get_options()) {
      if (option == app_->get_help_ptr() || seen_.count(option)) continue;
      for (const std::string& name : option->get_lnames()) {
        const std::string variable = environment_name(name);
        const char* value = std::getenv(variable.c_str());
        if (!value || *value == '\0') continue;
        added.push_back("--" + name + "=" + (is_flag(*option) ? flag_value(variable, value) : value));
        from_environment.push_back({variable, "--" + name});
        break;
      }
    }
    out.insert(out.begin() + options_start_, added.begin(), added.end());
  }

  static std::string flag_value(const std::string& variable, const std::string& value) {
    const std::string word = CLI::detail::to_lower(value);
    if (word == "1" || word == "true" || word == "on") return "true";
    if (word == "0" || word == "false" || word == "off") return "false";
    throw_error(ErrorCode::usage, "{}: '{}' is none of 1, 0, true, false, on, off", variable,
                printable(value));
  }

  CLI::App* app_;             // the command once it is known
  size_t options_start_ = 0;  // where in `out` the command's options begin
  std::set<const CLI::Option*> seen_;
  std::vector<std::string>::const_iterator next_, end_;
};

// CLI11's message as one line that starts like ours.
std::string one_line(const CLI::ParseError& error) {
  std::string message = error.what();
  for (char& c : message) c = c == '\n' ? ' ' : c;
  while (!message.empty() && message.back() == ' ') message.pop_back();
  const std::string_view extras = "The following argument";
  if (message.rfind(extras, 0) == 0) return "unexpected argument" + message.substr(message.find(':'));
  if (message.size() > 1 && !std::isupper(static_cast<unsigned char>(message[1]))) {
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  }
  return message;
}

// Names the variable when the option that the message is about came from the environment.
std::string with_origin(const std::string& message, const std::vector<FromEnvironment>& from) {
  for (const FromEnvironment& e : from) {
    const size_t at = message.find(e.option);
    if (at == std::string::npos) continue;
    const char after = at + e.option.size() < message.size() ? message[at + e.option.size()] : ' ';
    if (std::isalnum(static_cast<unsigned char>(after)) || after == '-') continue;
    return message + " (set by " + e.variable + ")";
  }
  return message;
}

}  // namespace

std::string_view multi_letter_short_form(std::string_view long_name) {
  for (const ShortForm& form : kShortForms) {
    if (form.long_name == long_name) return form.letters;
  }
  return {};
}

std::string_view long_name_of(std::string_view short_form) {
  for (const ShortForm& form : kShortForms) {
    if (form.letters == short_form) return form.long_name;
  }
  return {};
}

std::unique_ptr<CLI::App> make_app(const std::string& description, const std::string& name) {
  auto app = std::make_unique<CLI::App>(description, name);
  app->formatter(make_help_formatter());
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
  app->set_help_flag("-h,--help", "print this page");
  return app;
}

void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  Rewriter rewriter(app);
  rewriter.rewrite(arguments);
  std::vector<std::string> reversed(rewriter.out.rbegin(), rewriter.out.rend());  // as CLI11 wants them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& e) {
    throw Error(ErrorCode::usage, with_origin(one_line(e), rewriter.from_environment));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::usage) throw;
    throw Error(ErrorCode::usage, with_origin(message_of(e), rewriter.from_environment));
  }
}

}  // namespace tandem::tools
