// tandem template: renders a conversation with a chat template, for debugging templates.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text_input.h"
#include "gguf/file.h"
#include "text/chat_template.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/hub/model_path.h"
#include "tools/options/command_line.h"
#include "tools/output.h"

namespace tandem::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxTemplateBytes = size_t{16} << 20;

struct TemplateCommand {
  std::optional<std::string> model, file, bos, eos, now;
  std::string input;
  bool no_generation_prompt = false;
  HubOptions hub;
  bool sandbox = true;
};

// Parses "2026-01-15", "2026-01-15T12:00" or "2026-01-15T12:00:00"; ignores a fraction and a time zone.
std::tm parse_time(const std::string& text) {
  std::tm time{};
  int n_read = 0;
  const int n_fields =
      sscanf(text.c_str(), "%4d-%2d-%2d%n%*1[T ]%2d:%2d%n:%2d%n", &time.tm_year, &time.tm_mon, &time.tm_mday,
             &n_read, &time.tm_hour, &time.tm_min, &n_read, &time.tm_sec, &n_read);
  const std::string rest = text.substr(n_read);
  const bool rest_fits =
      rest.empty() || (n_fields >= 5 && rest.find_first_not_of(".0123456789Z:+-") == rest.npos);
  const std::tm given = time;
  time.tm_year -= 1900;
  time.tm_mon -= 1;
  const bool real = n_fields >= 3 && n_fields != 4 && rest_fits && timegm(&time) != -1;
  if (!real || time.tm_mday != given.tm_mday || time.tm_hour != given.tm_hour ||
      time.tm_min != given.tm_min) {
    throw_error(ErrorCode::usage, "--now: '{}' is not a time like 2026-01-15T12:00:00", printable(text));
  }
  return time;
}

// Removes a string variable and returns it; nothing if there is none of that name.
std::optional<std::string> take_text(Json& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end() || !found->is_string()) return std::nullopt;
  std::string text = found->get<std::string>();
  variables.erase(found);
  return text;
}

// So that a template does not fail at a place of its own.
void check_messages(const Json& messages, const std::string& source) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    const char* fault = nullptr;
    if (!message.is_object()) {
      fault = "is not an object";
    } else if (!message.contains("role")) {
      fault = "has no \"role\"";
    } else if (!message.contains("content") && !message.contains("tool_calls")) {
      fault = "has no \"content\"";
    }
    if (fault) throw_error(ErrorCode::bad_file, "{}: message {} {}", printable(source, 4096), i + 1, fault);
  }
}

void render(const TemplateCommand& options) {
  const bool from_model = options.model || !options.hub.empty();
  if (from_model == options.file.has_value()) {
    throw_error(ErrorCode::usage, "needed exactly one template: -m MODEL or --file TEMPLATE");
  }
  ModelHeader model;
  if (from_model) model = model_header(options.model.value_or(""), options.hub);
  Confinement confinement(options.sandbox);
  confinement.reads_header(model).reads(options.file.value_or("")).reads(options.input).begin();
  ModelTemplate source;
  std::string source_name = options.file.value_or("");
  if (from_model) {
    source_name = model.name;
    source = read_model_template(GgufFile(model.path, {.metadata_only = true}));
    if (source.text.empty()) {
      throw_error(ErrorCode::bad_file, "{}: found no chat template (tokenizer.chat_template)", source_name);
    }
  } else {
    source.text = read_text(*options.file, kMaxTemplateBytes);
  }
  const ChatTemplate chat_template(source.text, source_name);

  Json input = parse_json<Json>(read_text(options.input), options.input);
  RenderOptions how;
  if (options.now) how.now = parse_time(*options.now);
  Json messages = std::move(input);
  if (messages.is_object()) {
    how.extra = std::exchange(messages, Json());
    const auto take = [&how](const char* name) {
      const auto found = how.extra.find(name);
      Json value = found == how.extra.end() ? Json() : std::move(*found);
      if (found != how.extra.end()) how.extra.erase(found);
      return value;
    };
    messages = take("messages");
    how.tools = take("tools");
    const Json prompt = take("add_generation_prompt");
    if (prompt.is_boolean()) how.add_generation_prompt = prompt.get<bool>();
  }
  if (!messages.is_array()) {
    throw_error(ErrorCode::bad_file,
                "{}: needed an array of messages, or an object with one named \"messages\"", options.input);
  }
  check_messages(messages, options.input);
  if (options.no_generation_prompt) how.add_generation_prompt = false;
  const auto bos = take_text(how.extra, "bos_token"), eos = take_text(how.extra, "eos_token");
  how.bos_token = options.bos.value_or(bos.value_or(source.bos_token));
  how.eos_token = options.eos.value_or(eos.value_or(source.eos_token));
  const std::string prompt = chat_template.render(messages, how);
  Output out;
  out.write_text(prompt);
  out.flush();
}

}  // namespace

void add_template(CLI::App& app) {
  const auto options = std::make_shared<TemplateCommand>();
  CLI::App& command = add_command(app, "template", "render a conversation with a chat template");
  text(command, "-m,--model", options->model, "FILE",
       "use the template of this GGUF file; it may have no weights")
      .group("Template (one of these)");
  text(command, "--file", options->file, "FILE", "use the template in this file")
      .group("Template (one of these)");
  add_hub_options(command, options->hub, "Template (one of these)");
  add_sandbox_option(command, options->sandbox);

  text(command, "-i,--input", options->input, "FILE",
       "JSON file: an array of messages, or an object with messages, tools and other variables; "
       "- for stdin")
      .required();
  flag(command, "--no-generation-prompt", options->no_generation_prompt,
       "leave out the start of the model's answer")
      .group("Variables");
  text(command, "--bos", options->bos, "TEXT",
       "text of the beginning-of-sequence token (default: the model's)")
      .group("Variables");
  text(command, "--eos", options->eos, "TEXT", "text of the end-of-sequence token (default: the model's)")
      .group("Variables");
  text(command, "--now", options->now, "TIME", "current time for the template, ISO 8601 (default: now)")
      .group("Variables");

  set_footer(command, "Example: tandem template -m model.gguf -i messages.json");
  set_callback(command, [options] {
    set_log_level(LogLevel::info);
    render(*options);
  });
}

}  // namespace tandem::tools
