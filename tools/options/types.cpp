#include "tools/options/types.h"

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>

namespace tandem::tools {
namespace {

// "--ctx-size" of "-c,--ctx-size": what messages call the option.
std::string main_name(const std::string& names) {
  const size_t start = names.find("--");
  return names.substr(start, names.find(',', start) - start);
}

}  // namespace

void throw_none_of(const std::string& option, const std::string& text,
                   const std::vector<std::string>& known) {
  throw_error(ErrorCode::usage, "{}: '{}' is none of {}{}", option, printable(text),
              CLI::detail::join(known, ", "), did_you_mean(text, known));
}

int64_t parse_integer(const std::string& option, const std::string& text, int64_t min, int64_t max) {
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || std::isspace(static_cast<unsigned char>(text[0]))) {
    throw_error(ErrorCode::usage, "{}: '{}' is not a whole number", option, printable(text));
  }
  if (errno == ERANGE || value < min || value > max) {
    const bool too_small = value < min || value == LLONG_MIN;
    throw_error(ErrorCode::usage, "{}: {} is too {}, it must be {} or {}", option, printable(text),
                too_small ? "small" : "large", too_small ? min : max, too_small ? "more" : "less");
  }
  return value;
}

double parse_real(const std::string& option, const std::string& text, double min) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(value) ||
      std::isspace(static_cast<unsigned char>(text[0]))) {
    throw_error(ErrorCode::usage, "{}: '{}' is not a number", option, printable(text));
  }
  if (value < min) {
    throw_error(ErrorCode::usage, "{}: {} is out of range, it must be {}", option, text,
                min == 0 ? "0 or more" : "above 0");
  }
  return value;
}

Toggle parse_toggle(const std::string& option, const std::string& text) {
  const std::string word = CLI::detail::to_lower(text);
  if (word == "on" || word == "1" || word == "true" || word == "enabled") return Toggle::on;
  if (word == "off" || word == "0" || word == "false" || word == "disabled") return Toggle::off;
  if (word == "auto" || word == "-1") return Toggle::automatic;
  throw_none_of(option, text, {"on", "off", "auto"});
}

CLI::Option* choice(CLI::App& app, const char* names, const char* type, const char* help,
                    const char* shown_default, std::function<void(const std::string&)> set) {
  auto* option = app.add_option_function<std::string>(names, std::move(set), help);
  return option->type_name(type)->default_str(shown_default);
}

CLI::Option* text(CLI::App& app, const char* names, std::string& target, const char* type, const char* help) {
  return choice(app, names, type, help, target.c_str(),
                [&target](const std::string& value) { target = value; });
}

template <class Integer>
static CLI::Option* any_integer(CLI::App& app, const char* names, Integer& target, int32_t min,
                                const char* help) {
  return choice(app, names, "N", help, std::to_string(target).c_str(),
                [&target, min, name = main_name(names)](const std::string& value) {
                  target = static_cast<Integer>(parse_integer(name, value, min));
                });
}

CLI::Option* integer(CLI::App& app, const char* names, int32_t& target, int32_t min, const char* help) {
  return any_integer(app, names, target, min, help);
}
CLI::Option* integer(CLI::App& app, const char* names, int64_t& target, int32_t min, const char* help) {
  return any_integer(app, names, target, min, help);
}

CLI::Option* real(CLI::App& app, const char* names, float& target, const char* help) {
  return choice(app, names, "N", help, format("{:g}", target).c_str(),
                [&target, name = main_name(names)](const std::string& value) {
                  target = static_cast<float>(parse_real(name, value, -HUGE_VAL));
                });
}

CLI::Option* optional_real(CLI::App& app, const char* names, double min, const char* help,
                           std::function<void(float)> set) {
  return choice(app, names, "N", help, "",
                [min, set = std::move(set), name = main_name(names)](const std::string& value) {
                  set(static_cast<float>(parse_real(name, value, min)));
                });
}

CLI::Option* bare_choice(CLI::App& app, const char* names, const char* type, const char* bare_value,
                         const char* help, std::function<void(const std::string&)> set) {
  return choice(app, names, type, help, bare_value, std::move(set))->expected(0, 1);
}

CLI::Option* repeated(CLI::App& app, const char* names, const char* type, const char* help,
                      std::function<void(const std::vector<std::string>&)> set) {
  auto* option = app.add_option_function<std::vector<std::string>>(names, std::move(set), help);
  return option->type_name(type)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
}

}  // namespace tandem::tools
