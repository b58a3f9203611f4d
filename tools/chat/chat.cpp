// tandem chat: a conversation with a model, at a terminal or for a script.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "tools/chat/choose_template.h"
#include "tools/chat/files.h"
#include "tools/chat/loading.h"
#include "tools/chat/loop.h"
#include "tools/chat/settings.h"
#include "tools/chat/view.h"
#include "tools/command.h"
#include "tools/options/offload.h"
#include "tools/options/setting_flags.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/setup.h"

namespace tandem::tools {
namespace {

struct ChatOptions : CommandOptions {
  SamplerParams sampling;
  TextOptions text;  // -p, -f, -e, -n, -r, --color, --simple-io
  std::string system, system_file, chat_template, session_file;
  std::optional<ShowReasoning> reasoning;
  bool context_shift = false, single_turn = false, json = false;
};

// Joins -p and -f, as in `-p "Summarize:" -f notes.txt`.
std::string first_message(const ChatOptions& o) {
  if (o.text.file.empty()) return o.text.prompt;
  TextOptions file_only = o.text;
  file_only.prompt.clear();
  const std::string text = read_prompt(file_only);
  return o.text.prompt.empty() ? text : o.text.prompt + "\n\n" + text;
}

std::string read_stdin() {
  TextOptions all;
  all.file = "-";
  return read_prompt(all);
}

std::string system_text(const ChatOptions& o) {
  if (o.system_file.empty()) return o.text.escape ? process_escapes(o.system) : o.system;
  if (!o.system.empty()) throw Error(ErrorCode::usage, "use either -sys or -sysf, not both");
  std::string text = read_message_file(o.system_file);
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

ConversationOptions conversation_options(const ChatOptions& o, ShowReasoning reasoning) {
  ConversationOptions c;
  c.sampling = o.sampling;
  c.n_predict = o.text.n_predict < 0 ? -1 : o.text.n_predict;
  c.context_shift = o.context_shift;
  c.think = reasoning != ShowReasoning::off;
  c.stop = o.text.reverse_prompts;
  return c;
}

// Checks everything that does not need the model before loading it, so that mistakes show at once.
void chat(ChatOptions& o) {
  apply_log_options(o.log);
  apply_escapes(o.text, o.sampling);
  note_no_effect(o);
  const bool terminal = isatty(STDIN_FILENO) == 1 && !o.json;
  const std::string system = system_text(o);
  std::string first = first_message(o);
  const bool asks = terminal && !(o.single_turn && !first.empty());
  if (!asks && first.empty()) first = read_stdin();
  if (!asks && first.empty())
    throw Error(ErrorCode::usage, "no message: stdin is empty, and neither -p nor -f is given");

  const bool color = color_on(o.text);
  ShowReasoning reasoning =
      o.reasoning.value_or(isatty(STDOUT_FILENO) == 1 || o.json ? ShowReasoning::show : ShowReasoning::hide);
  TextViewOptions view_options;
  view_options.color = color;
  view_options.animate = !o.text.simple_io;
  view_options.interactive = asks;
  view_options.reasoning = reasoning;
  const std::unique_ptr<ChatView> view = o.json ? make_json_view() : make_text_view(view_options);
  try {
    install_interrupt_handler();
    const auto devices = make_devices(o.engine);
    const std::unique_ptr<Model> model = load_model(o.engine);
    const ChatTemplate chat_template = choose_template(*model, o.chat_template);
    const bool may_fit = model->file().n_file_bytes() <= most_to_read_ahead(o.engine.offload);
    if (asks && o.engine.model.open.mmap && may_fit) read_ahead(*model, view_options.animate);
    measure_speeds(o.engine, devices, *model);
    Session session(*model, pointers(devices), o.engine, explain_on_stderr(o.explain));
    if (interrupted()) throw Error(ErrorCode::interrupted, "");
    Conversation conversation(session, chat_template, conversation_options(o, reasoning));
    validate(o.sampling);
    if (!o.session_file.empty() && access(o.session_file.c_str(), F_OK) == 0)
      conversation.load(o.session_file);
    if (!o.session_file.empty()) check_writable(o.session_file);
    if (!system.empty()) conversation.set_system(system);
    view->begin(*model, session.n_ctx());
    ChatLoop loop(conversation, *view, reasoning);
    const auto save = [&] {
      if (!o.session_file.empty()) conversation.save(o.session_file);
    };
    try {
      asks ? loop.interactive({first, o.single_turn, color}) : loop.single_turn(first);
    } catch (const Error& e) {
      if (e.code() == ErrorCode::interrupted) save();
      throw;
    }
    save();
  } catch (const ClosedPipe&) {
    throw;
  } catch (const Error& e) {
    if (o.json && e.code() != ErrorCode::interrupted) view->error(message_of(e), e.code());
    throw;
  }
}

void add_message_options(CLI::App& app, ChatOptions& o) {
  const char* group = "Conversation";
  text(app, "--system-prompt", o.system, "TEXT", "system prompt")->group(group);
  text(app, "--system-prompt-file", o.system_file, "FILE", "read the system prompt from this file")
      ->group(group);
  text(app, "-p,--prompt", o.text.prompt, "TEXT", "first message")->group(group);
  text(app, "-f,--file", o.text.file, "FILE",
       "read the first message, or its part after -p, from this file; - for stdin")
      ->group(group);
  app.add_flag("-e,--escape,!--no-escape", o.text.escape,
               "interpret \\n, \\t, \\\\, \\\", \\', \\xNN in -sys, -p and -r (default: on)")
      ->group(group);
  app.add_flag("--single-turn", o.single_turn, "exit after one answer")->group(group);
  text(
      app, "--chat-template,--chat-template-file", o.chat_template, "NAME|FILE",
      "replace the model's chat template: chatml, llama3, llama2, mistral, gemma, phi3, zephyr, vicuna, or a "
      "file with a Jinja template")
      ->group(group);
  choice(app, "--reasoning", "show|hide|off",
         "show the reasoning before the answer dimmed, hide it, or turn it off in the model", "",
         [&o](const std::string& value) { o.reasoning = parse_reasoning("--reasoning", value); })
      ->group(group);
  text(app, "--session", o.session_file, "FILE",
       "continue this saved conversation if the file exists, and save it at the end")
      ->group(group);
  integer(app, "-n,--n-predict,--predict", o.text.n_predict, -2, "maximum tokens per answer, -1: no limit")
      ->group(group);
  repeated(app, "-r,--reverse-prompt", "TEXT", "end an answer after this text; repeatable",
           [&o](const std::vector<std::string>& values) { o.text.reverse_prompts = values; })
      ->group(group);
  app.add_flag("--json", o.json, "print one JSON object per event on stdout; read the message from stdin")
      ->group(group);
  bare_choice(app, "--color", "on|off|auto", "on",
              "use colors (default: auto, on a terminal without NO_COLOR)",
              [&o](const std::string& value) { o.text.color = parse_toggle("--color", value); })
      ->group(group);
  app.add_flag("--simple-io", o.text.simple_io, "print no colors and no control sequences")->group(group);
  for (const char* name : {"--conversation", "--jinja", "--no-warmup"}) {
    app.add_flag(name)->description("always in effect")->group(kNoEffectGroup);
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App* command = app.add_subcommand("chat", "chat with a model");
  const auto options = std::make_shared<ChatOptions>();
  add_message_options(*command, *options);
  add_model_options(*command, options->engine.model);
  add_context_options(*command, options->engine.context, options->flash_attention);
  command
      ->add_flag("--context-shift,!--no-context-shift", options->context_shift,
                 "when the context is full, drop the oldest turns and continue")
      ->group("Context");
  add_thread_options(*command, options->engine.devices);
  add_offload_options(*command, options->engine, options->explain);
  add_sampling_options(*command, options->sampling);
  add_rope_options(*command, options->engine.model.rope);
  add_log_options(*command, options->log);
  command->footer("Example: tandem chat -m model.gguf -sys \"You are brief.\"");
  command->callback([options] { chat(*options); });
}

}  // namespace tandem::tools
