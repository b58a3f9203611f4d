// tandem chat: a conversation with a model, at a terminal or for a script.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <span>

#include "base/interrupt.h"
#include "base/log.h"
#include "base/output_file.h"
#include "tools/chat/engine.h"
#include "tools/chat/files.h"
#include "tools/chat/loop.h"
#include "tools/chat/settings.h"
#include "tools/chat/signals.h"
#include "tools/chat/view.h"
#include "tools/command.h"
#include "tools/confinement.h"
#include "tools/expert_stats.h"
#include "tools/hub/settings.h"
#include "tools/incomplete.h"
#include "tools/json_events.h"
#include "tools/kv_store.h"
#include "tools/options/command_line.h"
#include "tools/options/json_object.h"
#include "tools/options/offload.h"
#include "tools/options/setting_flags.h"
#include "tools/options/types.h"
#include "tools/output.h"
#include "tools/setup.h"
#include "tools/statistics.h"

namespace tandem::tools {
namespace {

struct ChatOptions : CommandOptions {
  bool sandbox = true;
  SamplerParams sampling;
  SpeculationOptions speculation;
  KvStoreOptions kv_store;
  TextOptions text;  // -p, -f, -e, -n, -r, --color, --simple-io
  std::string system, system_file, chat_template, template_variables, session_file, expert_stats;
  std::optional<ShowReasoning> reasoning;
  Toggle markdown = Toggle::automatic;
  bool context_shift = false, exact_shift = false, single_turn = false;
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
  c.exact_shift = o.exact_shift;
  c.think = reasoning != ShowReasoning::off;
  c.stop = o.text.reverse_prompts;
  c.n_logprobs = o.text.n_logprobs;
  c.template_variables = o.template_variables;
  return c;
}

ViewSettings view_settings(const ChatOptions& o) {
  ViewSettings shown;
  shown.reasoning = o.reasoning.value_or(isatty(STDOUT_FILENO) == 1 || o.text.json ? ShowReasoning::show
                                                                                   : ShowReasoning::hide);
  shown.markdown = o.markdown != Toggle::off;
  return shown;
}

// The last message of the user and its answer, so that one sees where the conversation was.
void show_last_turn(ChatView& view, const Conversation& conversation) {
  const std::vector<ChatMessage>& messages = conversation.messages();
  view.note(format("(resumed: {})", counted(std::ssize(messages), "message")));
  view.show(std::span(messages).last(std::min<size_t>(messages.size(), 2)));
}

// Loads the session file if there is one, else checks that one can be written.
void open_session(const ChatOptions& o, ChatEngine& engine, ChatView& view, bool interactive) {
  if (o.session_file.empty()) return;
  check_session_target(o.session_file, engine, Replace::allowed);
  if (access(o.session_file.c_str(), F_OK) == 0) {
    engine.conversation().load(o.session_file);
    if (interactive) show_last_turn(view, engine.conversation());
  }
  check_writable(o.session_file);
}

// Models that /model can name because they were downloaded before.
void add_downloads(Confinement& confinement) {
  try {
    const HubSettings settings = hub_settings();
    confinement.reads(settings.cache_folder).reads(settings.url_folder);
  } catch (const Error&) {  // no home folder, or a wrong variable: of interest when a name is used
  }
}

// Checks everything that does not need the model before loading it, so that mistakes show at once.
void chat(ChatOptions& o) {
  check_logprobs(o.text);
  apply_log_options(o.log);
  apply_escapes(o.text, o.sampling);
  note_no_effect(o);
  check_one_model(o.engine.model.path, o.hub);
  const bool terminal = isatty(STDIN_FILENO) == 1 && !o.text.json;
  const std::string system = system_text(o);
  std::string first = first_message(o);
  const bool asks = terminal && !(o.single_turn && !first.empty());
  if (!asks && first.empty()) first = read_stdin();
  if (!asks && first.empty())
    throw Error(ErrorCode::usage, "no message: stdin is empty, and neither -p nor -f is given");

  const bool color = color_on(o.text);
  ViewSettings shown = view_settings(o);
  const std::unique_ptr<ChatView> view =
      o.text.json ? make_json_view() : make_text_view({color, o.text.simple_io, asks, shown});
  install_interrupt_handler();
  if (asks) install_chat_signals();
  validate(o.sampling);
  find_model_file(o);
  prepare_speculation(o.speculation, o.engine);
  Confinement confinement(o.sandbox);
  confinement.runs(o.engine).reads_model(o.speculation.model).reads(o.chat_template);
  prepare_kv_store(o.kv_store, confinement);
  confinement.writes(o.session_file).writes(o.expert_stats);
  if (asks) {
    confinement.helped_by(helper_for_typing());
    add_downloads(confinement);
  }
  confinement.begin();
  const std::unique_ptr<BlockStore> store = open_kv_store(o.kv_store);
  ChatEngine engine({.engine = o.engine,
                     .conversation = conversation_options(o, shown.reasoning),
                     .speculation = o.speculation,
                     .chat_template = o.chat_template,
                     .expert_stats = o.expert_stats,
                     .store = store.get(),
                     .read_ahead = asks,
                     .animate = !o.text.simple_io,
                     .explain = o.explain,
                     .confined = confinement.helper() != nullptr});
  view->begin(engine.model(), engine.session().n_ctx(), engine.devices());
  open_session(o, engine, *view, asks);
  if (!system.empty()) engine.conversation().set_system(system);
  ChatLoop loop(engine, *view, shown, o.session_file);
  std::optional<StopReason> answer_end;  // of a turn for a script
  try {
    if (asks) {
      loop.interactive({first, o.single_turn, color, o.text.simple_io, confinement.helper()});
    } else {
      answer_end = loop.single_turn(first);
    }
  } catch (const Error& e) {
    if (e.code() == ErrorCode::interrupted) {
      loop.save_at_end();
      engine.save_expert_stats();
    }
    throw;
  }
  loop.save_at_end();
  engine.save_expert_stats();
  log_store(o.kv_store, store.get());
  if (const int signal = ending_signal()) end_by_signal(signal);
  if (answer_end) {
    check_complete(o.sampling, *answer_end, [&](const std::string& text) {
      if (o.text.json) view->note(text);
    });
  }
}

void add_message_options(CLI::App& app, ChatOptions& o) {
  const char* group = "Conversation";
  text(app, "--system-prompt", o.system, "TEXT", "system prompt").group(group);
  text(app, "--system-prompt-file", o.system_file, "FILE", "read the system prompt from this file")
      .group(group);
  text(app, "-p,--prompt", o.text.prompt, "TEXT", "first message").group(group);
  text(app, "-f,--file", o.text.file, "FILE",
       "read the first message, or its part after -p, from this file; - for stdin")
      .group(group);
  flag(app, "-e,--escape,!--no-escape", o.text.escape,
       "interpret \\n, \\t, \\\\, \\\", \\', \\xNN in -sys, -p and -r (default: on)")
      .group(group);
  flag(app, "--single-turn", o.single_turn, "exit after one answer").group(group);
  text(
      app, "--chat-template,--chat-template-file", o.chat_template, "NAME|FILE",
      "replace the model's chat template: chatml, llama3, llama2, mistral, gemma, phi3, zephyr, vicuna, or a "
      "file with a Jinja template")
      .group(group);
  choice(app, "--chat-template-kwargs", "JSON",
         "variables for the chat template, such as {\"enable_thinking\": false}", "",
         [&o](const std::string& value) {
           o.template_variables = checked_json_object("--chat-template-kwargs", value);
         })
      .group(group);
  choice(app, "--reasoning", "show|hide|off",
         "show the reasoning before the answer dimmed, hide it, or turn it off in the model", "",
         [&o](const std::string& value) { o.reasoning = parse_reasoning("--reasoning", value); })
      .group(group);
  text(app, "--session", o.session_file, "FILE",
       "continue this saved conversation if the file exists, and save it after each turn")
      .group(group);
  integer(app, "-n,--n-predict,--predict", o.text.n_predict, -2, "maximum tokens per answer, -1: no limit")
      .group(group);
  repeated(app, "-r,--reverse-prompt", "TEXT", "end an answer after this text; repeatable",
           [&o](const std::vector<std::string>& values) { o.text.reverse_prompts = values; })
      .group(group);
  flag(app, "--json", o.text.json, "print one JSON object per event on stdout; read the message from stdin")
      .group(group);
  add_logprobs_option(app, o.text, group);
  bare_choice(app, "--color", "on|off|auto", "on",
              "use colors (default: auto, on a terminal without NO_COLOR)",
              [&o](const std::string& value) { o.text.color = parse_toggle("--color", value); })
      .group(group);
  bare_choice(app, "--markdown", "on|off|auto", "on",
              "render Markdown in answers (default: auto, on a terminal that can; elsewhere never)",
              [&o](const std::string& value) { o.markdown = parse_toggle("--markdown", value); })
      .group(group);
  flag(app, "--simple-io", o.text.simple_io, "print no colors and no control sequences").group(group);
  for (const char* name : {"--conversation", "--jinja", "--no-warmup"}) {
    ignored_flag(app, name, "always in effect");
  }
}

}  // namespace

void add_chat(CLI::App& app) {
  CLI::App& command = add_command(app, "chat", "chat with a model");
  const auto options = std::make_shared<ChatOptions>();
  add_message_options(command, *options);
  add_model_options(command, *options);
  add_context_options(command, options->engine.context, options->flash_attention);
  flag(command, "--context-shift,!--no-context-shift", options->context_shift,
       "when the context is full, drop the oldest turns and continue")
      .group("Context");
  flag(command, "--exact-shift", options->exact_shift,
       "after that, compute what remains again, instead of moving its cache to the new positions, which is "
       "much faster "
       "but keeps in it what it had seen of the dropped text")
      .group("Context");
  add_kv_store_options(command, options->kv_store);
  add_thread_options(command, options->engine.devices);
  add_offload_options(command, options->engine, options->explain);
  add_expert_stats_option(command, options->expert_stats);
  add_sampling_options(command, options->sampling);
  add_speculation_options(command, options->speculation);
  add_rope_options(command, options->engine.model.rope);
  add_log_options(command, options->log);
  add_sandbox_option(command, options->sandbox);
  set_footer(command, "Example: tandem chat -m model.gguf -sys \"You are brief.\"");
  set_callback(command, [options] { run_with_events(options->text.json, [&] { chat(*options); }); });
}

}  // namespace tandem::tools
