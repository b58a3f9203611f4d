#include "tools/chat/commands.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "base/terminal.h"
#include "base/text.h"
#include "tools/chat/files.h"
#include "tools/options/suggest.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

enum class Argument { none, text, path, setting, toggle };

struct Command {
  std::string_view name;
  std::string_view shape;  // of its argument; "[...]" is optional
  const char* help;
  Argument argument;
  CommandResult (*run)(ChatState& chat, const std::string& argument);
};

constexpr CommandResult kDone = CommandResult::done;

CommandResult help(ChatState& chat, const std::string&);

CommandResult system(ChatState& chat, const std::string& text) {
  Conversation& c = chat.conversation();
  if (text.empty()) {
    chat.view.note(c.system().empty() ? "(no system prompt)" : std::string(c.system()));
    return kDone;
  }
  c.set_system(text == "none" ? "" : text);
  chat.view.note(text == "none" ? "(system prompt removed)" : "(system prompt set)");
  return kDone;
}

CommandResult clear(ChatState& chat, const std::string&) {
  chat.conversation().clear();
  chat.attached.clear();
  chat.unanswered.clear();
  chat.view.note(chat.conversation().system().empty() ? "(new conversation)"
                                                      : "(new conversation with the same system prompt)");
  return kDone;
}

CommandResult regen(ChatState& chat, const std::string&) {
  if (!chat.unanswered.empty() || chat.conversation().can_regenerate()) return CommandResult::regenerate;
  throw Error(ErrorCode::usage, "there is no answer yet");
}

std::string undo_last_turn(ChatState& chat) {
  const auto text = chat.conversation().undo();
  if (!text) throw Error(ErrorCode::usage, "there is no message yet");
  return *text;
}

CommandResult undo(ChatState& chat, const std::string&) {
  undo_last_turn(chat);
  chat.view.note("(removed the last message and its answer)");
  return kDone;
}

CommandResult edit(ChatState& chat, const std::string&) {
  chat.edit = std::exchange(chat.unanswered, "");
  if (chat.edit.empty()) chat.edit = undo_last_turn(chat);
  return kDone;
}

CommandResult save_to(ChatState& chat, const std::string& given, Replace replace) {
  const std::string path = expand_home(given);
  check_session_target(path, chat.engine, chat.own_files.contains(path) ? Replace::allowed : replace);
  chat.conversation().save(path);
  chat.own_files.insert(path);
  chat.view.note("(saved)");
  return kDone;
}
CommandResult save(ChatState& chat, const std::string& path) {
  return save_to(chat, path, Replace::refused);
}
CommandResult save_over(ChatState& chat, const std::string& path) {
  return save_to(chat, path, Replace::allowed);
}

std::string messages_text(const Conversation& c) {
  return counted(std::ssize(c.messages()), "message");
}

CommandResult load(ChatState& chat, const std::string& given) {
  const std::string path = expand_home(given);
  chat.conversation().load(path);
  chat.own_files.insert(path);
  chat.unanswered.clear();
  chat.view.note(format("(loaded: {}, {} tokens)", messages_text(chat.conversation()),
                        chat.conversation().session().n_past()));
  return kDone;
}

CommandResult export_to(ChatState& chat, const std::string& given, Replace replace) {
  const std::string path = expand_home(given);
  check_text_target(path, chat.engine, chat.own_files.contains(path) ? Replace::allowed : replace);
  write_text_file(path, as_markdown(chat.conversation().messages()));
  chat.own_files.insert(path);
  chat.view.note("(written)");
  return kDone;
}
CommandResult export_markdown(ChatState& chat, const std::string& path) {
  return export_to(chat, path, Replace::refused);
}
CommandResult export_over(ChatState& chat, const std::string& path) {
  return export_to(chat, path, Replace::allowed);
}

CommandResult history(ChatState& chat, const std::string&) {
  const auto& messages = chat.conversation().messages();
  if (messages.empty()) throw Error(ErrorCode::usage, "there is no message yet");
  chat.view.show(messages);
  return kDone;
}

CommandResult raw(ChatState& chat, const std::string& text) {
  if (!text.empty()) {
    change_setting({chat.conversation().options(), chat.shown}, "markdown",
                   text == "on"    ? "off"
                   : text == "off" ? "on"
                                   : text);
    chat.view.change(chat.shown);
    chat.view.note(chat.shown.markdown ? "(Markdown is rendered)" : "(Markdown is shown as it is)");
    return kDone;
  }
  const auto& messages = chat.conversation().messages();
  if (messages.empty() || messages.back().role != "assistant")
    throw Error(ErrorCode::usage, "there is no answer yet");
  chat.view.show_source(messages.back().content);
  return kDone;
}

CommandResult model(ChatState& chat, const std::string& path) {
  chat.engine.change_model(expand_home(path));
  chat.view.begin(chat.engine.model(), chat.engine.session().n_ctx(), chat.engine.devices());
  if (!chat.conversation().messages().empty())
    chat.view.note(format("(continuing with {})", messages_text(chat.conversation())));
  return kDone;
}

CommandResult stats(ChatState& chat, const std::string&) {
  const Conversation& c = chat.conversation();
  const Session& s = c.session();
  chat.view.note(format("{}\n{}, on {}\n{}; context {} of {} tokens; KV cache {:.1f} MiB, {} and {}",
                        s.model().path(), s.model().description(), chat.engine.devices(), messages_text(c),
                        c.n_context(), s.n_ctx(), static_cast<double>(s.kv_bytes()) / (1 << 20),
                        kv_dtype_text(s.kv_config(), &KvFormat::k), kv_dtype_text(s.kv_config(), &KvFormat::v)));
  if (chat.seed) chat.view.note(format("seed of the last answer: {}", *chat.seed));
  return kDone;
}

CommandResult set(ChatState& chat, const std::string& text) {
  const ChatSettings settings{chat.conversation().options(), chat.shown};
  if (text.empty()) {
    chat.view.note(settings_table(settings));
    return kDone;
  }
  const std::string name = text.substr(0, text.find_first_of(" ="));
  const size_t value = text.find_first_not_of(" =", name.size());
  if (value != text.npos) {
    change_setting(settings, name, text.substr(value));
    chat.view.change(chat.shown);
  }
  chat.view.note("(" + name + " is " + setting_value(settings, name) + ")");
  return kDone;
}

CommandResult file(ChatState& chat, const std::string& path) {
  const std::string text = read_message_file(expand_home(path));
  chat.attached += path + ":\n```\n" + text + (text.ends_with('\n') ? "" : "\n") + "```\n\n";
  chat.view.note(format("({}, {} bytes, sent with the next message)", printable(path, 200), text.size()));
  return kDone;
}

CommandResult reasoning(ChatState& chat, const std::string&) {
  const auto& messages = chat.conversation().messages();
  if (messages.empty() || messages.back().reasoning.empty()) {
    throw Error(ErrorCode::usage, "the last answer has no reasoning");
  }
  chat.view.note(messages.back().reasoning);
  return kDone;
}

CommandResult leave(ChatState& chat, const std::string&) {
  chat.leave = true;
  return kDone;
}

constexpr Command kCommands[] = {
    {"/help", "", "list the commands", Argument::none, help},
    {"/system", "[TEXT]", "show or set the system prompt; \"none\" removes it", Argument::text, system},
    {"/clear", "", "start a new conversation", Argument::none, clear},
    {"/regen", "", "answer the last message again", Argument::none, regen},
    {"/undo", "", "remove the last message and its answer", Argument::none, undo},
    {"/edit", "", "remove the last answer and edit its message", Argument::none, edit},
    {"/history", "", "show the conversation", Argument::none, history},
    {"/raw", "[on|off]", "show the last answer's Markdown source; on: all answers'", Argument::toggle, raw},
    {"/model", "FILE", "continue the conversation with another model", Argument::path, model},
    {"/save", "FILE", "save the conversation and its KV cache; /save! replaces a file", Argument::path, save},
    {"/load", "FILE", "continue a saved conversation", Argument::path, load},
    {"/export", "FILE.md", "write the conversation as Markdown; /export! replaces a file", Argument::path,
     export_markdown},
    {"/stats", "", "show model, context, memory and seed", Argument::none, stats},
    {"/set", "[NAME [VALUE]]", "list, show or change settings, as in /set temp 0.2", Argument::setting, set},
    {"/file", "PATH", "put a file's text before the next message", Argument::path, file},
    {"/reasoning", "", "show the reasoning behind the last answer", Argument::none, reasoning},
    {"/exit", "", "exit (also /quit, /bye, Ctrl-D)", Argument::none, leave},
};

// Other names, which /help does not list.
constexpr Command kAliases[] = {
    {"/quit", "", "", Argument::none, leave},
    {"/bye", "", "", Argument::none, leave},
    {"/?", "", "", Argument::none, help},
    {"/save!", "FILE", "", Argument::path, save_over},
    {"/export!", "FILE.md", "", Argument::path, export_over},
};

CommandResult help(ChatState& chat, const std::string&) {
  constexpr size_t kNames = 22, kLeastWidth = 20;
  const size_t columns = terminal_columns(STDOUT_FILENO) - 1;
  const size_t width = std::max(columns, kNames + 1 + kLeastWidth) - kNames - 1;
  std::string text;
  for (const Command& c : kCommands) {
    std::string name = std::string(c.name) + " " + std::string(c.shape);
    std::istringstream lines(wrapped_words(c.help, width));
    for (std::string line; std::getline(lines, line); name.clear()) text += format("{:<{}} {}\n", name, kNames, line);
  }
  text += wrapped_words(
      "Alt-Enter, or \\ at the end of a line, starts a new line. Ctrl-C stops an answer; twice at the prompt, it exits.",
      columns);
  chat.view.note(text);
  return kDone;
}

const Command* find_command(std::string_view name) {
  for (const Command& c : kCommands) {
    if (c.name == name) return &c;
  }
  for (const Command& c : kAliases) {
    if (c.name == name) return &c;
  }
  return nullptr;
}

std::vector<std::string> starting_with(const std::vector<std::string>& names, const std::string& start) {
  std::vector<std::string> found;
  std::copy_if(names.begin(), names.end(), std::back_inserter(found),
               [&](const std::string& name) { return name.starts_with(start); });
  return found;
}

}  // namespace

// A path such as /usr/bin is a message, not a command.
bool is_command(std::string_view line) {
  if (!line.starts_with('/')) return false;
  const std::string_view name = line.substr(0, line.find_first_of(" \t\n"));
  return name.find('/', 1) == name.npos;
}

CommandResult run_command(ChatState& chat, const std::string& line) {
  const std::string name = line.substr(0, line.find_first_of(" \t\n"));
  const Command* command = find_command(name);
  if (command == nullptr) {
    std::vector<std::string> known;
    for (const Command& c : kCommands) known.emplace_back(c.name);
    const std::string similar = closest(name, known);
    const std::string hint = similar.empty() ? "" : format("did you mean {}? ", similar);
    throw_error(ErrorCode::usage, "unknown command {}; {}/help lists the commands", printable(name), hint);
  }
  const std::string argument(trimmed(std::string_view(line).substr(name.size())));
  const bool needed = !command->shape.empty() && !command->shape.starts_with('[');
  if (needed && argument.empty()) {
    throw_error(ErrorCode::usage, "{} needs {}", name, command->shape);
  }
  if (command->argument == Argument::none && !argument.empty()) {
    throw_error(ErrorCode::usage, "{} takes no argument", name);
  }
  return command->run(chat, argument);
}

std::optional<CommandFile> file_of_command(const std::string& line) {
  if (!is_command(line)) return std::nullopt;
  const std::string name = line.substr(0, line.find_first_of(" \t\n"));
  const Command* command = find_command(name);
  const std::string argument(trimmed(std::string_view(line).substr(name.size())));
  if (command == nullptr || command->argument != Argument::path || argument.empty()) return std::nullopt;
  const bool writes = command->run == save || command->run == save_over || command->run == export_markdown ||
                      command->run == export_over;
  return CommandFile{expand_home(argument), writes};
}

Completion complete_command(const std::string& line) {
  if (!is_command(line)) return {};
  const size_t space = line.find(' ');
  if (space == line.npos) {
    std::vector<std::string> names;
    for (const Command& c : kCommands)
      names.push_back(std::string(c.name) + (c.argument == Argument::none ? "" : " "));
    return {0, starting_with(names, line)};
  }
  const Command* command = find_command(line.substr(0, space));
  const size_t begin = line.find_first_not_of(' ', space);
  if (command == nullptr) return {};
  const std::string typed = begin == line.npos ? "" : line.substr(begin);
  const size_t at = line.size() - typed.size();
  if (command->argument == Argument::path) return {at, matching_paths(typed)};
  if (command->argument == Argument::toggle) return {at, starting_with({"on", "off"}, typed)};
  if (command->argument != Argument::setting) return {};
  const size_t second = typed.find(' ');
  if (second == typed.npos) {
    std::vector<std::string> names = setting_names();
    for (std::string& name : names) name += ' ';
    return {at, starting_with(names, typed)};
  }
  const std::string name = typed.substr(0, second), value = typed.substr(second + 1);
  if (name == "reasoning") return {at + second + 1, starting_with({"show", "hide", "off"}, value)};
  if (name == "context_shift" || name == "markdown")
    return {at + second + 1, starting_with({"on", "off"}, value)};
  return {};
}

}  // namespace tandem::tools
