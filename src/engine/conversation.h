// Conversation: turns between a user and a model. It owns the transcript; the session it talks through keeps
// what was computed, and only what is new since the last turn is computed again.
//
// Before each answer the chat template renders the transcript. As far as that text is the one of the turn
// before (the answer as it was generated included), its tokens are kept, and the session with them. Text of
// messages never becomes a control token, whatever is typed.
//
// One thread; session and template outlive it. Members that throw leave transcript and session fit for use.
// Errors: what the template, Session, Sampler and SessionFile throw, and Error(usage) for text that is not
// UTF-8 or does not fit the context.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/generate.h"
#include "engine/session_file.h"
#include "text/chat_template.h"
#include "text/reasoning.h"

namespace tandem {

struct ChatMessage {
  std::string role, content;
  std::string reasoning = {};  // of an answer
  bool operator==(const ChatMessage&) const = default;
};

struct ConversationOptions {
  SamplerParams sampling;
  int64_t n_predict = -1;              // tokens of an answer; -1: no limit
  bool context_shift = false;          // a full context: the oldest turns are left out; else an error
  bool exact_shift = false;            // what then remains is computed again instead of moved in the cache
  bool think = true;                   // false: tells templates that know of it (enable_thinking)
  std::string template_variables;      // more variables for the template: a JSON object, or nothing
  std::vector<std::string> stop;       // an answer ends after one of these
  int32_t n_logprobs = -1;             // as in GenerateOptions
  Speculation* speculation = nullptr;  // outlives the conversation
};

struct AnswerCallbacks {
  std::function<void(const Continuation::Choice&)> chosen;                // each token, before its text
  std::function<void(AnswerPart part, std::string_view text)> text;       // whole characters, as they come
  std::function<void(int64_t n_done, int64_t n_prompt)> prompt_progress;  // of the tokens that are new
  std::function<bool()> interrupted;                                      // true: finish the token and stop
};

struct Answer {
  ChatMessage message;
  GenerateStats stats;     // n_prompt: tokens that were new
  int64_t n_reused = 0;    // tokens of the prompt that were computed already
  int64_t n_loaded = 0;    // of those, loaded from the store (Session::keep_in)
  uint64_t seed = 0;       // of the sampler
  int64_t n_left_out = 0;  // messages that a full context leaves out from now on, all told
  bool kept = true;        // false: stopped before it began; the user's message is taken back
};

class Conversation {
 public:
  Conversation(Session& session, const ChatTemplate& chat_template, ConversationOptions options);

  ConversationOptions& options() { return options_; }
  const std::vector<ChatMessage>& messages() const { return messages_; }
  const Session& session() const { return session_; }
  // Tokens of the session that belong to the messages: all it has, or what the next turn keeps of it when messages were taken back
  // or changed.
  int64_t n_context() const;

  // The system prompt, "" for none. Refused, with the one before kept, when the template knows no such role
  // or the context has no room for it.
  void set_system(const std::string& text);
  std::string_view system() const;

  // Adds the user's message and the answer to it. When it throws, the message is taken back.
  Answer ask(const std::string& text, const AnswerCallbacks& callbacks);
  // Another answer to the last message of the user. There is one: can_regenerate().
  Answer regenerate(const AnswerCallbacks& callbacks);
  bool can_regenerate() const { return !messages_.empty() && messages_.back().role == "assistant"; }
  // Takes the last message of the user and the answer back and returns that message; nothing when there is
  // none.
  std::optional<std::string> undo();
  // Forgets all but the system prompt.
  void clear();

  // Continues a conversation that another model began. Throws what the template throws for it.
  void adopt(std::vector<ChatMessage> messages);

  // Without the cache, the tokens are computed again at the next turn after load().
  void save(const std::string& path, Saved what = Saved::all) const;
  void load(const std::string& path);

 private:
  // A prompt as text and as tokens, and where the two can be cut.
  struct Prompt {
    std::string text;
    std::vector<TextSpan> user;  // of text: what came from messages
    std::vector<int32_t> ids;
    std::vector<TokenCut> cuts;  // ascending
  };
  // The content of the session: a prompt, followed by an answer.
  struct Track {
    Prompt prompt;
    std::string answer;  // its text, control tokens shown
    std::vector<int32_t> answer_ids;
  };

  size_t n_system() const { return !messages_.empty() && messages_.front().role == "system" ? 1 : 0; }
  Prompt render(const std::vector<ChatMessage>& messages) const;
  Prompt keep_common(const MarkedPrompt& marked) const;
  int64_t n_held(const Prompt& prompt) const;
  std::vector<ChatMessage> sent_messages() const;
  Prompt fitting_prompt();
  int64_t n_keep(const Prompt& prompt) const;
  int64_t reuse(std::span<const int32_t> prompt, int64_t n_common, bool left_out);
  Sampler make_sampler(const Prompt& prompt, int64_t n_common) const;
  Answer answer(const AnswerCallbacks& callbacks);
  void check_text(const std::string& text) const;
  std::string transcript() const;

  Session& session_;
  const ChatTemplate& template_;
  ConversationOptions options_;
  RenderOptions render_;
  std::vector<ChatMessage> messages_;
  size_t n_left_out_ = 0;  // messages behind the system prompt that the model is not shown any more
  uint64_t n_answers_ = 0;
  bool cut_ = false;  // the session has tokens of messages that were taken back or changed
  Track track_;
};

}  // namespace tandem
