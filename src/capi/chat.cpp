#include "capi/call.h"
#include "capi/chat_template.h"
#include "capi/session.h"

using namespace tandem;
using namespace tandem::capi;

struct tandem_chat {
  tandem_chat(std::shared_ptr<OpenSession> session, const tandem_options& options)
      : open(std::move(session)),
        chat_template(chosen_template(open->model(), options.chat_template)),
        conversation(open->session(), chat_template, conversation_options(options)) {}

  std::shared_ptr<OpenSession> open;
  ChatTemplate chat_template;
  Conversation conversation;
};

namespace {

Conversation& conversation(tandem_chat* chat) {
  need(chat, "chat");
  return chat->conversation;
}

// Hands the pieces of an answer to a callback until it says stop.
class AnswerStream {
 public:
  AnswerStream(OpenSession& open, tandem_callback callback, void* user_data)
      : open_(open), callback_(callback), user_data_(user_data) {}

  AnswerCallbacks callbacks() {
    AnswerCallbacks c;
    c.chosen = [this](const Continuation::Choice& choice) { open_.pieces().add(choice); };
    c.text = [this](AnswerPart part, std::string_view text) {
      send(text, part == AnswerPart::reasoning ? TANDEM_PART_REASONING : TANDEM_PART_TEXT, TANDEM_STOP_NONE);
    };
    c.interrupted = [this] { return stopped_ || open_.interrupted(); };
    return c;
  }
  void end(StopReason reason) { send("", TANDEM_PART_TEXT, stop_of(reason)); }

 private:
  void send(std::string_view text, tandem_part part, tandem_stop stop) {
    if (stopped_) return;
    const tandem_piece& piece = open_.pieces().build(text, part, stop);
    stopped_ = callback_ != nullptr && callback_(&piece, user_data_) != 0;
  }

  OpenSession& open_;
  tandem_callback callback_;
  void* user_data_;
  bool stopped_ = false;
};

void take_result(OpenSession& open, const Answer& answer) {
  tandem_result& r = open.result();
  r.stop = stop_of(answer.stats.reason);
  r.n_prompt = answer.stats.n_prompt;
  r.n_reused = answer.n_reused;
  r.n_loaded = answer.n_loaded;
  r.n_generated = answer.stats.n_generated;
  r.n_shifts = answer.stats.n_shifts;
  r.seed = answer.seed;
  r.prompt_s = answer.stats.prompt_s;
  r.generate_s = answer.stats.generate_s;
  r.n_guessed = answer.stats.speculation.n_checked;
  r.n_guessed_right = answer.stats.speculation.n_right;
  open.set_texts(answer.message.content, answer.message.reasoning);
}

}  // namespace

tandem_status tandem_chat_new(tandem_session* session, const tandem_options* options, tandem_chat** chat) {
  if (chat != nullptr) *chat = nullptr;
  return guarded([&] {
    need(session, "session");
    need(chat, "chat");
    *chat = new tandem_chat(session->open, given(options));
  });
}

void tandem_chat_free(tandem_chat* chat) {
  delete chat;
}

tandem_status tandem_chat_set_system(tandem_chat* chat, const char* text) {
  return guarded([&] { conversation(chat).set_system(text == nullptr ? "" : text); });
}

tandem_status tandem_chat_ask(tandem_chat* chat, const tandem_options* options, const char* message,
                              tandem_callback callback, void* user_data) {
  return guarded([&] {
    Conversation& c = conversation(chat);
    need(message, "message");
    OpenSession& open = *chat->open;
    c.options() = conversation_options(given(options));
    c.options().speculation = chat->open->speculation();
    validate(c.options().sampling);
    open.start_call();
    AnswerStream stream(open, callback, user_data);
    const Answer answer = c.ask(message, stream.callbacks());
    take_result(open, answer);
    stream.end(answer.stats.reason);
  });
}

tandem_status tandem_chat_undo(tandem_chat* chat) {
  return guarded([&] {
    if (!conversation(chat).undo()) throw_error(ErrorCode::usage, "there is no message to take back");
  });
}

tandem_status tandem_chat_clear(tandem_chat* chat) {
  return guarded([&] { conversation(chat).clear(); });
}

tandem_status tandem_chat_save(const tandem_chat* chat, const char* path) {
  return guarded([&] {
    need(chat, "chat");
    need(path, "path");
    chat->conversation.save(path);
  });
}

tandem_status tandem_chat_load(tandem_chat* chat, const char* path) {
  return guarded([&] {
    Conversation& c = conversation(chat);
    need(path, "path");
    chat->open->start_call();
    c.load(path);
  });
}
