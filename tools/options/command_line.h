// How commands declare their options: one line of names, target, kind of value and help. This is all of CLI11 that
// a command needs; its header, which takes seconds to compile, is included only by the files of this room that
// parse and describe.
//
// Names are CLI11's ("-c,--ctx-size"; "--mmap,!--no-mmap" for a flag that can be turned off; without a dash: a
// positional argument). Short forms of several letters come from the table in short_forms.cpp. A target outlives
// the parse, and its value before it is the default on the help page.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tandem::tools {

// The group of options that exist so that known command lines keep working; last on a help page.
inline constexpr const char* kNoEffectGroup = "Accepted, without effect";

// An option of a command, for saying more about it. The command owns it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option group(const std::string& name) const;  // the heading on the help page; "": not on it
  Option type_name(const std::string& name) const;
  Option default_str(const std::string& text) const;  // instead of the target's value; "": none
  Option required() const;
  Option expected(int min, int max) const;  // number of values
  Option each(std::function<void(const std::string&)> call) const;
  Option trigger_on_parse() const;  // while parsing, so that nothing else of the command line matters

 private:
  CLI::Option* option_;
};

// ---- Commands ----

CLI::App& add_command(CLI::App& app, const char* name, const char* help);
// What runs once the command line is parsed.
void set_callback(CLI::App& command, std::function<void()> run);
// The text below the options on the help page.
void set_footer(CLI::App& command, const std::string& text);
// By long name: "--ctx-size".
void remove_option(CLI::App& command, const char* name);
bool is_given(const CLI::App& command, const char* name);
// For callbacks of options such as --list-devices: ends the parse; the program prints the text and exits with 0.
[[noreturn]] void print_and_exit(const std::string& text);

// ---- Options with a value ----

Option text(CLI::App& app, const char* names, std::string& target, const char* type, const char* help);
Option text(CLI::App& app, const char* names, std::optional<std::string>& target, const char* type,
            const char* help);
// All that is given, for positional arguments.
Option texts(CLI::App& app, const char* names, std::vector<std::string>& target, const char* type,
             const char* help);
Option integer(CLI::App& app, const char* names, int32_t& target, int32_t min, const char* help);
Option integer(CLI::App& app, const char* names, int64_t& target, int32_t min, const char* help);
Option real(CLI::App& app, const char* names, float& target, const char* help);
// No default to show: unset, the model or another option decides.
Option optional_real(CLI::App& app, const char* names, double min, const char* help,
                     std::function<void(float)> set);
// A word that `set` understands or refuses. `shown_default` is for the help page.
Option choice(CLI::App& app, const char* names, const char* type, const char* help, const char* shown_default,
              std::function<void(const std::string&)> set);
// The same with a value that can be left out: "-fa" is "-fa on".
Option bare_choice(CLI::App& app, const char* names, const char* type, const char* bare_value,
                   const char* help, std::function<void(const std::string&)> set);
// May be given several times, with one value each; `set` gets all of them.
Option repeated(CLI::App& app, const char* names, const char* type, const char* help,
                std::function<void(const std::vector<std::string>&)> set);

// ---- Flags ----

Option flag(CLI::App& app, const char* names, bool& target, const char* help);
// Calls `set` where the flag is given, with false for --flag=false.
Option switch_flag(CLI::App& app, const char* names, const char* help, std::function<void(bool)> set);
// Calls `call` where the flag is given and not false.
Option call_flag(CLI::App& app, const char* names, const char* help, std::function<void()> call);
// A flag that is accepted; `why` says why it changes nothing. In kNoEffectGroup.
Option ignored_flag(CLI::App& app, const char* names, const char* why);

}  // namespace tandem::tools
