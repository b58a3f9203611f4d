// Parses a command line: the rewritten arguments go to CLI11, whose errors become ours.
#include <CLI/CLI.hpp>

#include "base/error.h"
#include "tools/options/arguments.h"
#include "tools/options/options.h"
#include "tools/options/setting_flags.h"

namespace tandem::tools {
namespace {

// CLI11's message as one line that starts like ours.
std::string one_line(const CLI::ParseError& error) {
  std::string message = error.what();
  for (char& c : message) c = c == '\n' ? ' ' : c;
  while (!message.empty() && message.back() == ' ') message.pop_back();
  const std::string_view extras = "The following argument", of_flag = "Could not convert: ";
  if (const size_t equals = message.find(" = "); message.starts_with(of_flag) && equals != message.npos) {
    return format("{}: '{}' is not on or off", message.substr(of_flag.size(), equals - of_flag.size()),
                  printable(message.substr(equals + 3)));
  }
  if (message == "--model is required")
    return "no model is given: name its file after the command, or with -m";
  if (message.rfind(extras, 0) == 0) return "unexpected argument" + message.substr(message.find(':'));
  if (message.size() > 1 && !std::isupper(static_cast<unsigned char>(message[1]))) {
    message[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(message[0])));
  }
  return printable(message, 4096);
}

// The place outside of the command line that set the option which the message is about; null if there is none.
const Origin* origin_of(const std::string& message, const std::vector<Origin>& origins) {
  for (const Origin& origin : origins) {
    for (const std::string& option : origin.options) {
      const size_t at = message.find(option);
      if (at == std::string::npos) continue;
      const char after = at + option.size() < message.size() ? message[at + option.size()] : ' ';
      if (!std::isalnum(static_cast<unsigned char>(after)) && after != '-') return &origin;
    }
  }
  return nullptr;
}

[[noreturn]] void throw_with_origin(const std::string& message, const std::vector<Origin>& origins) {
  const Origin* origin = origin_of(message, origins);
  if (!origin) throw Error(ErrorCode::usage, message);
  throw Error(origin->code, message + " (set by " + origin->source + ")");
}

}  // namespace

std::unique_ptr<CLI::App> make_app(const std::string& description, const std::string& name) {
  auto app = std::make_unique<CLI::App>(description, name);
  app->formatter(make_help_formatter());
  app->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)->always_capture_default();
  app->set_help_flag("-h,--help", "print this page");
  return app;
}

void add_config_options(CLI::App& app) {
  app.add_option("--config", "read defaults from this file instead of ~/.config/tandem/config.ini")
      ->type_name("FILE");
  app.add_flag("--no-config")->description("read no file with defaults");
}

void parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  const Arguments rewritten = rewrite_arguments(app, arguments);
  std::vector<std::string> reversed(rewritten.list.rbegin(), rewritten.list.rend());  // as CLI11 wants them
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::Success&) {
    throw;
  } catch (const CLI::ParseError& e) {
    throw_with_origin(one_line(e), rewritten.origins);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::usage) throw;
    throw_with_origin(message_of(e), rewritten.origins);
  }
}

}  // namespace tandem::tools
