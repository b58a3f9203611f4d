// CLI11 reads "-ub" as "-u b", so arguments are put into its terms first; what the environment and the
// configuration file set is added as if it had been typed.
#include "tools/options/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include "base/text.h"
#include "tools/options/defaults.h"
#include "tools/options/llama_flags.h"
#include "tools/options/options.h"
#include "tools/options/positional.h"
#include "tools/options/suggest.h"

namespace tandem::tools {
namespace {

const CLI::Option* find_short(const CLI::App& app, char letter) {
  const auto found = app.get_options([letter](const CLI::Option* o) { return o->check_sname({letter}); });
  return found.empty() ? nullptr : found.front();
}

bool needs_value(const CLI::Option& option) {
  return !is_flag(option) && option.get_items_expected_min() > 0;
}

bool is_switch_word(const std::string& text) {
  return text == "on" || text == "off";
}

// Whether a word after an option whose value can be left out is that value, rather than a model or a prompt.
bool is_value(const std::string& word) {
  const bool is_option = word.size() > 1 && word[0] == '-';
  return !word.empty() && !is_option && word.find_first_of(" \n") == std::string::npos &&
         !looks_like_model(word);
}

// A word that is rather a mistyped file, or a folder, than a prompt, if a model is missing.
bool looks_like_path(const std::string& word) {
  std::error_code ignored;
  if (word.size() < 4096 && std::filesystem::exists(word, ignored)) return true;
  const bool has_spaces = word.find_first_of(" \t\n") != std::string::npos;
  return !has_spaces && (word.find('/') != std::string::npos || word.find(".gguf") != std::string::npos);
}

// Commands with CLI11's own positional arguments get words as they are.
int n_positionals(const CLI::App& app) {
  int n = 0;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_positional()) n += option->get_items_expected_max();
  }
  return n;
}

class Rewriter {
 public:
  explicit Rewriter(CLI::App& root) : root_(&root), app_(&root) {}

  Arguments rewrite(const std::vector<std::string>& arguments) {
    bool only_words = false;  // after "--"
    for (next_ = arguments.begin(), end_ = arguments.end(); next_ != end_;) {
      const std::string& argument = *next_++;
      if (only_words) {
        word(argument);
      } else if (argument == "--") {
        only_words = true;
        if (n_positionals(*app_) > 0) out_.push_back(argument);
      } else if (argument.rfind("--", 0) == 0) {
        long_option(argument);
      } else if (argument.size() > 1 && argument[0] == '-') {
        short_option(argument);
      } else {
        word(argument);
      }
    }
    if (app_ != root_ && !seen_.count(app_->get_help_ptr())) {
      check_positionals();
      Defaults defaults(*root_, *app_, config_);
      place_words(defaults);
      add(defaults);
    }
    return {std::move(out_), std::move(origins_)};
  }

 private:
  // ---- Words ----

  void word(const std::string& argument) {
    if (commands_of(*app_).empty()) return positional(argument);
    std::vector<std::string> known;
    for (CLI::App* command : commands_of(*app_)) {
      if (command->check_name(argument)) {
        app_ = command;
        out_.push_back(argument);
        options_start_ = out_.size();
        return;
      }
      known.push_back(command->get_name());
    }
    if (looks_like_model(argument) && argument.find(".gguf") != std::string::npos) {
      throw_error(ErrorCode::usage, "unknown command '{}'; to talk to a model: tandem chat {}",
                  printable(argument), printable(argument, 4096));
    }
    const std::string hint = did_you_mean(argument, known);
    if (!hint.empty()) throw_error(ErrorCode::usage, "unknown command '{}'{}", printable(argument), hint);
    throw_error(ErrorCode::usage, "unknown command '{}'; the commands are {}", printable(argument),
                joined(known, ", "));
  }

  void positional(const std::string& argument) {
    const int room = n_positionals(*app_);
    words_.push_back(argument);
    if (room == 0) return;  // see place_words
    if (static_cast<int>(words_.size()) > room) {
      throw_error(ErrorCode::usage, "unexpected argument '{}'", printable(argument));
    }
    out_.push_back(argument);
  }

  // CLI11 would name the first one by its internal name.
  void check_positionals() const {
    int n_needed = 0;
    std::string usage = app_->get_name();
    for (const CLI::Option* option : app_->get_options()) {
      if (!option->get_positional()) continue;
      usage += " " + (option->get_required() ? option->get_type_name() : "[" + option->get_type_name() + "]");
      const bool elsewhere = !option->get_lnames().empty();  // as an option, or from the environment
      if (option->get_required() && !elsewhere) n_needed += option->get_items_expected_min();
    }
    if (static_cast<int>(words_.size()) >= n_needed) return;
    throw_error(ErrorCode::usage, "an argument is missing: needed tandem {}", usage);
  }

  bool is_given(std::span<const std::string_view> one_of) const {
    return std::ranges::any_of(one_of, [&](std::string_view name) {
      const CLI::Option* option = find_long(*app_, std::string(name));
      return option && seen_.count(option);
    });
  }

  // Gives the words that stand for options, such as `model.gguf "hi"`, to these options.
  void place_words(const Defaults& defaults) {
    if (words_.empty() || n_positionals(*app_) > 0) return;
    PositionalOptions options = positional_options(app_->get_name());
    std::erase_if(options.names, [this](std::string_view name) {
      const CLI::Option* option = find_long(*app_, std::string(name));
      return !option || (name == "model" ? is_given(kModelOptions) : seen_.count(option) > 0);
    });
    const bool takes_prompt = find_long(*app_, "prompt") && !options.names.empty() && !is_given(kPromptOptions);
    if (takes_prompt && options.names.front() == "model" && !looks_like_model(words_.front())) {
      const bool is_model = !defaults.has_model() && looks_like_path(words_.front());
      if (!is_model && (!defaults.has_model() || words_.size() > 1)) no_model();
      if (!is_model) options.names.erase(options.names.begin());
    }
    for (size_t i = 0; i < words_.size(); ++i) {
      const bool repeats = options.repeats && i >= options.names.size() && !options.names.empty();
      if (i >= options.names.size() && !repeats) unexpected_word(words_[i], i);
      const std::string name(repeats ? options.names.back() : options.names[i]);
      emit(*find_long(*app_, name), "--" + name, true, words_[i]);
    }
  }

  std::string quoted_words() const { return printable("\"" + joined(words_, " ") + "\""); }

  [[noreturn]] void no_model() const {
    const std::string command = "tandem " + app_->get_name();
    if (words_.size() == 1) {
      throw_error(ErrorCode::usage,
                  "no model is given: name its file before the prompt, as in {} model.gguf {}", command,
                  quoted_words());
    }
    throw_error(ErrorCode::usage,
                "'{}' is not a model file; a prompt of several words needs quotes, as in {} model.gguf {}",
                printable(words_.front()), command, quoted_words());
  }

  [[noreturn]] void unexpected_word(const std::string& argument, size_t at) const {
    const bool is_prompt = find_long(*app_, "prompt") && at > 0;
    throw_error(ErrorCode::usage, "unexpected argument '{}'{}", printable(argument),
                is_prompt ? "; a prompt of several words needs quotes" : "");
  }

  // ---- Options ----

  void long_option(const std::string& argument) {
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    const bool has_value = equals != std::string::npos;
    const std::string value = has_value ? argument.substr(equals + 1) : "";
    const CLI::Option* option = find_long(*app_, name);
    if (option) return emit(*option, "--" + name, has_value, value);
    if (of_program(name, has_value, value)) return;
    if (name == "reasoning-budget" && app_->get_name() == "chat") return reasoning_budget(has_value, value);
    if (llama_flag("--" + name, has_value)) return;
    unknown(argument.substr(0, equals));
  }

  void short_option(const std::string& argument) {
    const size_t equals = argument.find('=');
    const std::string letters = argument.substr(1, equals == std::string::npos ? equals : equals - 1);
    const bool has_value = equals != std::string::npos;
    const std::string value = has_value ? argument.substr(equals + 1) : "";
    if (letters.size() > 1) {
      for (const std::string_view name : {long_name_of(letters), std::string_view(letters)}) {
        const CLI::Option* option = name.empty() ? nullptr : find_long(*app_, std::string(name));
        // "-temp" is not a way to write "--temp": only names that are short are taken as short forms
        if (!option || (name == letters && letters.size() > 3)) continue;
        return emit(*option, "--" + std::string(name), has_value, value);
      }
    }
    const CLI::Option* option = letters.empty() ? nullptr : find_short(*app_, letters[0]);
    if (option && letters.size() == 1) return emit(*option, "-" + letters, has_value, value);
    if (llama_flag("-" + letters, has_value)) return;
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
    if (!has_value && is_flag(option) && next_ != end_ && is_switch_word(*next_)) {  // "--fit on"
      return emit(option, name, true, flag_value(name, *next_++));
    }
    if (!has_value && !needs_value(option) && !is_flag(option) && next_ != end_ && is_value(*next_)) {
      return emit(option, name, true, *next_++);
    }
    if (has_value && !needs_value(option)) {
      out_.push_back((name.size() == 2 ? long_form : name) + "=" + value);
      return;
    }
    out_.push_back(name);
    if (!needs_value(option)) return;
    if (!has_value && next_ == end_) throw_error(ErrorCode::usage, "{} needs a value", name);
    out_.push_back(has_value ? value : *next_++);
    values_[option.get_lnames().empty() ? name : option.get_lnames().front()].push_back(out_.back());
  }

  // The options of the program, which may also come after the command.
  bool of_program(const std::string& name, bool has_value, const std::string& value) {
    const CLI::Option* option = find_long(*root_, name);
    if (!option || option == root_->get_help_ptr()) return false;
    if (name == "no-config") {
      config_ = {.none = true};
    } else if (name == "config") {
      if (!has_value && next_ == end_) throw_error(ErrorCode::usage, "--config needs a value");
      config_ = {.path = has_value ? value : *next_++};
    } else {
      out_.insert(out_.begin(), "--" + name + (has_value ? "=" + value : ""));
      if (options_start_ > 0) ++options_start_;
    }
    return true;
  }

  // Thinking is on or off here; a number of tokens cannot be set.
  void reasoning_budget(bool has_value, const std::string& value) {
    if (!has_value && next_ == end_) throw_error(ErrorCode::usage, "--reasoning-budget needs a value");
    const std::string budget = has_value ? value : *next_++;
    if (budget == "-1") return;
    if (budget != "0") {
      throw_error(ErrorCode::usage,
                  "--reasoning-budget: found '{}', but reasoning is not cut after some tokens: needed 0 (no "
                  "reasoning) or -1 (no limit)",
                  printable(budget));
    }
    if (const CLI::Option* option = find_long(*app_, "reasoning")) emit(*option, "--reasoning", true, "off");
  }

  // Flags of llama.cpp that are no options here. Only for commands that run a model.
  bool llama_flag(const std::string& flag, bool has_value) {
    if (!find_long(*app_, "ctx-size")) return false;
    const LlamaFlag* known = find_llama_flag(app_->get_name(), flag);
    if (!known) return false;
    if (!known->answer.empty()) throw_error(ErrorCode::usage, "{}: {}", flag, known->answer);
    if (has_value || known->takes == Takes::nothing) return true;
    if (known->takes == Takes::value) {
      if (next_ == end_) throw_error(ErrorCode::usage, "{} needs a value", flag);
      ++next_;
    } else if (next_ != end_ && (is_switch_word(*next_) || *next_ == "auto")) {
      ++next_;
    }
    return true;
  }

  [[noreturn]] void unknown(const std::string& option) const {
    const size_t n_dashes = std::min(option.find_first_not_of('-'), option.size());
    const std::string shown = printable(option), name = option.substr(n_dashes);
    std::vector<std::string> having;
    for (const CLI::App* command : commands_of(*root_)) {
      const bool has_short = option.size() == 2 && find_short(*command, name[0]);
      const bool has_long = find_long(*command, std::string(long_name_of(name))) || find_long(*command, name);
      if (command != app_ && (option.size() == 2 ? has_short : has_long))
        having.push_back(command->get_name());
    }
    if (app_ == root_ && !having.empty()) {
      throw_error(ErrorCode::usage, "{} comes after the command, as in tandem {} {}", shown, having.front(),
                  shown);
    }
    std::string hint;
    if (option.size() > 2) hint = did_you_mean(name, long_names(*app_), "--");
    if (hint.empty() && !having.empty()) {
      hint = "; " + joined(having, ", ") + (having.size() > 1 ? " have it" : " has it");
    }
    throw_error(ErrorCode::usage, "unknown option '{}'{}", shown, hint);
  }

  // ---- The environment and the configuration file ----

  void add(Defaults& defaults) {
    std::vector<std::string> models;
    for (const std::string_view name : kModelOptions) {
      const auto given = values_.find(std::string(name));
      if (given != values_.end()) models.insert(models.end(), given->second.begin(), given->second.end());
    }
    std::vector<std::string> added;
    for (const Default& d : defaults.choose(seen_, models)) {
      added.push_back("--" + d.name + "=" + d.value);
      Origin origin{{}, d.source, d.error_code};
      for (const std::string& name : d.option->get_lnames()) origin.options.push_back("--" + name);
      origins_.push_back(std::move(origin));
    }
    out_.insert(out_.begin() + static_cast<std::ptrdiff_t>(options_start_), added.begin(), added.end());
  }

  CLI::App* root_;
  CLI::App* app_;                   // the command once it is known
  size_t options_start_ = 0;        // where in `out_` the command's options begin
  std::vector<std::string> words_;  // the command's positional arguments
  std::set<const CLI::Option*> seen_;
  std::map<std::string, std::vector<std::string>> values_;  // of options by their first long name
  ConfigChoice config_;
  std::vector<std::string>::const_iterator next_, end_;
  std::vector<std::string> out_;
  std::vector<Origin> origins_;
};

}  // namespace

const CLI::Option* find_long(const CLI::App& app, const std::string& name) {
  if (name.empty()) return nullptr;
  const auto found = app.get_options([&name](const CLI::Option* o) { return o->check_lname(name); });
  return found.empty() ? nullptr : found.front();
}

bool is_flag(const CLI::Option& option) {
  return option.get_expected_max() == 0 || option.get_type_size() == 0;
}

std::string flag_value(const std::string& source, const std::string& value, ErrorCode code) {
  const std::string text = lower_case(value);
  if (text == "1" || text == "true" || text == "on" || text == "yes") return "true";
  if (text == "0" || text == "false" || text == "off" || text == "no") return "false";
  throw_error(code, "{}: '{}' is none of 1, 0, true, false, on, off", source, printable(value));
}

std::vector<std::string> long_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (option == command.get_help_ptr()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

std::vector<CLI::App*> commands_of(const CLI::App& root) {
  std::vector<CLI::App*> commands;
  for (const CLI::App* command : root.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(const_cast<CLI::App*>(command));
  }
  return commands;
}

Arguments rewrite_arguments(CLI::App& root, const std::vector<std::string>& arguments) {
  return Rewriter(root).rewrite(arguments);
}

}  // namespace tandem::tools
