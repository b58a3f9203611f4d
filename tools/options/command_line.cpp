#include "tools/options/command_line.h"

#include <CLI/CLI.hpp>
#include <cmath>

#include "tools/options/types.h"

namespace tandem::tools {
namespace {

// "--ctx-size" of "-c,--ctx-size": what messages call the option.
std::string main_name(const std::string& names) {
  const size_t start = names.find("--");
  return names.substr(start, names.find(',', start) - start);
}

template <class Integer>
Option any_integer(CLI::App& app, const char* names, Integer& target, int32_t min, const char* help) {
  return choice(app, names, "N", help, std::to_string(target).c_str(),
                [&target, min, name = main_name(names)](const std::string& value) {
                  target = static_cast<Integer>(parse_integer(name, value, min));
                });
}

}  // namespace

// ---- Option ----

Option Option::group(const std::string& name) const {
  return Option(option_->group(name));
}
Option Option::type_name(const std::string& name) const {
  return Option(option_->type_name(name));
}
Option Option::default_str(const std::string& text) const {
  return Option(option_->default_str(text));
}
Option Option::required() const {
  return Option(option_->required());
}
Option Option::expected(int min, int max) const {
  return Option(option_->expected(min, max));
}
Option Option::each(std::function<void(const std::string&)> call) const {
  return Option(option_->each(std::move(call)));
}
Option Option::trigger_on_parse() const {
  return Option(option_->trigger_on_parse());
}

// ---- Commands ----

CLI::App& add_command(CLI::App& app, const char* name, const char* help) {
  return *app.add_subcommand(name, help);
}
void set_callback(CLI::App& command, std::function<void()> run) {
  command.callback(std::move(run));
}
void set_footer(CLI::App& command, const std::string& text) {
  command.footer(text);
}
void remove_option(CLI::App& command, const char* name) {
  command.remove_option(command.get_option(name));
}
bool is_given(const CLI::App& command, const char* name) {
  return command.get_option(name)->count() > 0;
}
void print_and_exit(const std::string& text) {
  throw CLI::CallForVersion(text, 0);
}

// ---- Options with a value ----

Option choice(CLI::App& app, const char* names, const char* type, const char* help, const char* shown_default,
              std::function<void(const std::string&)> set) {
  auto* option = app.add_option_function<std::string>(names, std::move(set), help);
  return Option(option->type_name(type)->default_str(shown_default));
}

Option text(CLI::App& app, const char* names, std::string& target, const char* type, const char* help) {
  return choice(app, names, type, help, target.c_str(),
                [&target](const std::string& value) { target = value; });
}
Option text(CLI::App& app, const char* names, std::optional<std::string>& target, const char* type,
            const char* help) {
  return choice(app, names, type, help, "", [&target](const std::string& value) { target = value; });
}

Option texts(CLI::App& app, const char* names, std::vector<std::string>& target, const char* type,
             const char* help) {
  return Option(app.add_option(names, target, help)->type_name(type));
}

Option integer(CLI::App& app, const char* names, int32_t& target, int32_t min, const char* help) {
  return any_integer(app, names, target, min, help);
}
Option integer(CLI::App& app, const char* names, int64_t& target, int32_t min, const char* help) {
  return any_integer(app, names, target, min, help);
}

Option real(CLI::App& app, const char* names, float& target, const char* help) {
  return choice(app, names, "N", help, format("{:g}", target).c_str(),
                [&target, name = main_name(names)](const std::string& value) {
                  target = static_cast<float>(parse_real(name, value, -HUGE_VAL));
                });
}

Option optional_real(CLI::App& app, const char* names, double min, const char* help,
                     std::function<void(float)> set) {
  return choice(app, names, "N", help, "",
                [min, set = std::move(set), name = main_name(names)](const std::string& value) {
                  set(static_cast<float>(parse_real(name, value, min)));
                });
}

Option bare_choice(CLI::App& app, const char* names, const char* type, const char* bare_value,
                   const char* help, std::function<void(const std::string&)> set) {
  return choice(app, names, type, help, bare_value, std::move(set)).expected(0, 1);
}

Option repeated(CLI::App& app, const char* names, const char* type, const char* help,
                std::function<void(const std::vector<std::string>&)> set) {
  auto* option = app.add_option_function<std::vector<std::string>>(names, std::move(set), help);
  return Option(option->type_name(type)
                    ->expected(1)
                    ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
                    ->allow_extra_args(false));
}

// ---- Flags ----

Option flag(CLI::App& app, const char* names, bool& target, const char* help) {
  return Option(app.add_flag(names, target, help));
}
Option switch_flag(CLI::App& app, const char* names, const char* help, std::function<void(bool)> set) {
  return Option(app.add_flag_function(
      names, [set = std::move(set)](int64_t n) { set(n > 0); }, help));
}
Option call_flag(CLI::App& app, const char* names, const char* help, std::function<void()> call) {
  return Option(app.add_flag_callback(names, std::move(call), help));
}
Option ignored_flag(CLI::App& app, const char* names, const char* why) {
  return Option(app.add_flag(names)->description(why)->group(kNoEffectGroup));
}

}  // namespace tandem::tools
