#include "tools/chat/commands.h"

#include <algorithm>

#include "base/text.h"
#include "tools/chat/files.h"

namespace tandem::tools {
namespace {

enum class Argument { none, text, path, setting };

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
  Conversation& c = chat.conversation;
  if (text.empty()) {
    chat.view.note(c.system().empty() ? "(no system prompt)" : std::string(c.system()));
    return kDone;
  }
  c.set_system(text == "none" ? "" : text);
  chat.view.note(text == "none" ? "(system prompt removed)" : "(system prompt set)");
  return kDone;
}

CommandResult clear(ChatState& chat, const std::string&) {
  chat.conversation.clear();
  chat.attached.clear();
  chat.unanswered.clear();
  chat.view.note(chat.conversation.system().empty() ? "(new conversation)"
                                                    : "(new conversation with the same system prompt)");
  return kDone;
}

CommandResult regen(ChatState& chat, const std::string&) {
  if (!chat.unanswered.empty() || chat.conversation.can_regenerate()) return CommandResult::regenerate;
  throw Error(ErrorCode::usage, "there is no answer yet");
}

std::string undo_last_turn(ChatState& chat) {
  const auto text = chat.conversation.undo();
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

CommandResult save(ChatState& chat, const std::string& path) {
  chat.conversation.save(expand_home(path));
  chat.view.note("(saved)");
  return kDone;
}

CommandResult load(ChatState& chat, const std::string& path) {
  chat.conversation.load(expand_home(path));
  chat.unanswered.clear();
  chat.view.note(format("(loaded: {} messages, {} tokens)", chat.conversation.messages().size(),
                        chat.conversation.session().n_past()));
  return kDone;
}

CommandResult export_markdown(ChatState& chat, const std::string& path) {
  write_text_file(expand_home(path), as_markdown(chat.conversation.messages()));
  chat.view.note("(written)");
  return kDone;
}

CommandResult stats(ChatState& chat, const std::string&) {
  const Conversation& c = chat.conversation;
  const Session& s = c.session();
  chat.view.note(format("{}\n{}\n{} messages; context {} of {} tokens; KV cache {:.1f} MiB, {} and {}",
                        s.model().path(), s.model().description(), c.messages().size(), s.n_past(), s.n_ctx(),
                        static_cast<double>(s.kv_bytes()) / (1 << 20), dtype_name(s.kv_config().k_dtype),
                        dtype_name(s.kv_config().v_dtype)));
  return kDone;
}

CommandResult set(ChatState& chat, const std::string& text) {
  const ChatSettings settings{chat.conversation.options(), chat.reasoning};
  if (text.empty()) {
    chat.view.note(settings_table(settings));
    return kDone;
  }
  const size_t space = text.find_first_of(" =");
  const size_t value = space == text.npos ? text.npos : text.find_first_not_of(" =", space);
  if (value == text.npos) throw Error(ErrorCode::usage, "/set needs a name and a value, as in /set temp 0.2");
  change_setting(settings, text.substr(0, space), text.substr(value));
  chat.view.set_reasoning(chat.reasoning);
  chat.view.note("(" + text.substr(0, space) + " is " + text.substr(value) + ")");
  return kDone;
}

CommandResult file(ChatState& chat, const std::string& path) {
  const std::string text = read_message_file(expand_home(path));
  chat.attached += path + ":\n```\n" + text + (text.ends_with('\n') ? "" : "\n") + "```\n\n";
  chat.view.note(format("({}, {} bytes, sent with the next message)", printable(path, 200), text.size()));
  return kDone;
}

CommandResult reasoning(ChatState& chat, const std::string&) {
  const auto& messages = chat.conversation.messages();
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
    {"/save", "FILE", "save the conversation and its KV cache", Argument::path, save},
    {"/load", "FILE", "continue a saved conversation", Argument::path, load},
    {"/export", "FILE.md", "write the conversation as Markdown", Argument::path, export_markdown},
    {"/stats", "", "show model, context and memory", Argument::none, stats},
    {"/set", "[NAME VALUE]", "list or change settings, as in /set temp 0.2", Argument::setting, set},
    {"/file", "PATH", "put a file's text before the next message", Argument::path, file},
    {"/reasoning", "", "show the reasoning behind the last answer", Argument::none, reasoning},
    {"/exit", "", "exit (also Ctrl-D)", Argument::none, leave},
};

CommandResult help(ChatState& chat, const std::string&) {
  std::string text;
  for (const Command& c : kCommands) {
    text += format("{:<22} {}\n", (std::string(c.name) + " " + std::string(c.shape)), c.help);
  }
  text +=
      "Alt-Enter, or \\ at the end of a line, starts a new line. Ctrl-C stops an answer; twice at the "
      "prompt, it "
      "exits.";
  chat.view.note(text);
  return kDone;
}

const Command* find_command(std::string_view name) {
  for (const Command& c : kCommands) {
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
    throw_error(ErrorCode::usage, "unknown command {}; /help lists the commands", printable(name));
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
  if (command->argument != Argument::setting) return {};
  const size_t second = typed.find(' ');
  if (second == typed.npos) {
    std::vector<std::string> names = setting_names();
    for (std::string& name : names) name += ' ';
    return {at, starting_with(names, typed)};
  }
  const std::string name = typed.substr(0, second), value = typed.substr(second + 1);
  if (name == "reasoning") return {at + second + 1, starting_with({"show", "hide", "off"}, value)};
  if (name == "context_shift") return {at + second + 1, starting_with({"on", "off"}, value)};
  return {};
}

}  // namespace tandem::tools
